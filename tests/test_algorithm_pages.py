"""docs/algorithms.md and docs/zh/algorithms.md are what the code and their sources say today."""

import re

import algorithm_pages
import pages
import pytest

PAGES = algorithm_pages.generated()
ENGLISH, CHINESE = (PAGES[language.page] for language in algorithm_pages.LANGUAGES)


def shape(text: str) -> list[str]:
    """Heading levels, table rows and bullets in order: what two translations of one page share."""
    return re.findall(r"^(?:#+ |\||- |```|\d\. )", text, flags=re.MULTILINE)


def test_the_pages_on_disk_are_the_generated_ones():
    assert pages.stale(PAGES, algorithm_pages.COMMAND) == []


def test_both_languages_have_the_same_shape():
    assert len(re.findall("^#+ ", ENGLISH, re.M)) == len(re.findall("^#+ ", CHINESE, re.M)) > 10
    assert shape(ENGLISH) == shape(CHINESE)


def test_both_languages_quote_the_same_code():
    quoted = [set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)`", text)) for text in (ENGLISH, CHINESE)]
    assert quoted[0] == quoted[1]


def test_a_source_that_leaves_something_out_is_refused():
    text = (algorithm_pages.DOCS / "src" / "algorithms.en.md").read_text(encoding="utf-8")
    assert list(algorithm_pages.unmentioned(text)) == []
    assert list(algorithm_pages.unmentioned(text.replace("{{preset rloo}}", ""))) == ["{{preset rloo}}"]
    assert list(algorithm_pages.unmentioned(text.replace("`EntropyBonus`", "the bonus"))) == ["EntropyBonus"]
    assert list(algorithm_pages.unmentioned(text.replace("adv_mask_after", ""))) == ["adv_mask_after"]


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
def test_links_lead_somewhere(text):
    page = next(path for path, known in PAGES.items() if known == text)
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or (page.parent / link).exists(), link
