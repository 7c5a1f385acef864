"""The algorithm pages are what the code and their sources say today, in both languages alike."""

import json
import re
from typing import Any

import algorithm_pages
import algorithm_tables as tables
import pages
import pytest
from algorithm_tables import Words

PAGES = algorithm_pages.generated()
NAMES = algorithm_pages.source_names()
ENGLISH, CHINESE = algorithm_pages.LANGUAGES


def expected(name: str) -> dict[str, Any]:
    """The numbers of a golden file."""
    return json.loads((pages.ROOT / "tests" / "golden" / f"{name}.json").read_text())["expected"]


def texts(name: str) -> tuple[str, str]:
    return PAGES[ENGLISH.page(name)], PAGES[CHINESE.page(name)]


def shape(text: str) -> list[str]:
    """Heading levels, tables with their numbers of cells, bullets and fences: what two translations of one page share."""
    marks = re.findall(r"^(?:#+ |\|.*\||- |```|\d\. )", text, flags=re.MULTILINE)
    return ["|" * len(re.findall(r"(?<!\\)\|", mark)) if mark.startswith("|") else mark for mark in marks]


def quoted(text: str) -> set[str]:
    """Keys, values and parts in code quotes; formulas are translated, so what holds a space is not among them."""
    return {code for code in re.findall(r"`([\w.<>/-]+)`", text, re.ASCII) if not code.startswith("docs/src")}


def slugs(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_pages_on_disk_are_the_generated_ones():
    assert pages.stale(PAGES, algorithm_pages.COMMAND) == []


def test_no_page_is_left_over():
    on_disk = {path for language in algorithm_pages.LANGUAGES for path in (language.folder / "algorithms").glob("*.md")}
    assert on_disk == {path for path in PAGES if path.parent.name == "algorithms"}


@pytest.mark.parametrize("name", NAMES)
def test_both_languages_have_the_same_shape_and_quote_the_same_code(name):
    english, chinese = texts(name)
    assert shape(english) == shape(chinese)
    assert quoted(english) == quoted(chinese)
    assert english.count("http") == chinese.count("http")


@pytest.mark.parametrize("name", [name for name in NAMES if name in tables.OWN])
def test_every_algorithm_has_its_objective_example_use_and_pitfalls(name):
    english, _ = texts(name)
    assert all(part in english for part in ("maximise  ", "| slot | part |", "| key | here |", "Source: "))
    heads = re.findall(r"^## (.*)$", english, flags=re.MULTILINE)
    assert "When to use it" in heads and "What to watch" in heads
    assert any(head.startswith("Against") for head in heads)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(algorithm_pages.DOCS)))
def test_links_lead_to_pages_and_headings(path):
    prose = re.sub(r"^```.*?^```$", "", PAGES[path], flags=re.MULTILINE | re.DOTALL)
    for link, anchor in re.findall(r"\]\((?!https://)([^)#]*)#?([^)]*)\)", prose):
        target = (path.parent / link).resolve()
        assert target.exists(), link
        assert not anchor or anchor in slugs(target.read_text(encoding="utf-8")), f"{link}#{anchor}"


def test_what_no_source_names_is_refused():
    text = "\n".join(ENGLISH.source(name).read_text(encoding="utf-8") for name in NAMES)
    assert list(algorithm_pages.unmentioned(text)) == []
    for said, missing in (
        ("{{preset rloo}}", "rloo"),
        ("EntropyBonus", "EntropyBonus"),
        ("SecondMoment", "SecondMoment"),
        ("adv_mask_after", "adv_mask_after"),
        ("use_then_update", "use_then_update"),
        ("areal_liteppo", "areal_liteppo"),
    ):
        assert missing in list(algorithm_pages.unmentioned(text.replace(said, "")))


def test_a_word_without_translation_is_refused():
    words = Words({"the mean": "均值"})
    assert words("r - the mean") == "r - 均值"
    with pytest.raises(ValueError, match="no translation of median in 'r - the median'"):
        Words({"the ": ""})("r - the median")
    assert Words()("the median") == "the median"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("grpo", "adv_grpo_sample_std"), ("drgrpo", "adv_drgrpo"), ("rloo", "adv_rloo"),
        ("liteppo", "adv_liteppo_raw_batch_std"), ("areal_liteppo", "adv_liteppo_centered_std"),
        ("areal_grpo", "adv_batch_level"),
    ],
)  # fmt: skip
def test_the_examples_are_the_golden_advantages(name, file):
    given = pytest.approx(expected(file)["advantages"], rel=2e-5, abs=2e-5)  # the files' eps is not every preset's
    assert tables.advantages(name).tolist() == given


def test_the_table_of_gates_holds_what_the_gates_do():
    rows = {tuple(row[:2]): row[2:] for row in cells(tables.gates(Words()))}
    at = [f"ρ = {ratio:g}" for ratio in tables.RATIOS].index
    assert rows["`ppo`", "A > 0"][at("ρ = 1.25")] == "0.00"
    assert rows["`ppo`", "A < 0"][at("ρ = 1.25")] == "1.25"
    assert rows["`dapo`", "A > 0"][at("ρ = 1.25")] == "1.25"
    assert rows["`decoupled_clip`", "A < 0"][at("ρ = 3.5")] == "0.00"
    assert rows["`cispo`", "A > 0"][at("ρ = 3.5")] == "1.28"
    assert {row[at("ρ = 1")] for row in rows.values()} == {"1.00"}


def test_the_table_of_entropy_rules_is_the_golden_one():
    numbers = expected("ctl_adaptive_entropy")
    names = ("report_style_up_down_same_step", "seed_blog_never_decreases", "skywork_released_code_prev_step_gate")
    rows = cells(tables.entropy_forms(Words()))
    for name, row in zip((*names, "trl_prev_step_gate"), rows, strict=True):
        assert [float(cell.strip("`")) for cell in row[1:]] == numbers[name]


def cells(table: str) -> list[list[str]]:
    """The rows below a table's head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
