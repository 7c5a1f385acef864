"""Sample rows hold what was sampled, untouched, in the order of the advantages."""

import pytest
import torch

from partita.records import Group, Prompt, Row, Sample
from partita.report.records import sample_rows, view_group

INJECTION = "<script>alert(1)</script> [bold]x[/bold] \x1b[31m"


def group() -> Group:
    prompt = Prompt("p1", (1, 2), "two and two?", {"answer": "2 + 2\n#### 4"}, answer="4")
    good = Sample([Row([1, 2, 5, 6], [False, False, True, True], [0.0, 0.0, -0.5, -1.5], [-1, -1, 3, 3])], "stop", "4")
    good.reward, good.parts, good.notes = 1.0, {"format": 0.5}, {"format/why": "two tags"}
    bad = Sample([Row([1, 2, 7], [False, False, True], [0.0, 0.0, -2.0], [-1, -1, 3])], "length", INJECTION)
    bad.status, bad.error = "reward_error", "ValueError: no answer"
    return Group(9, prompt, [good, bad])


def test_rows_split_the_advantages_by_sample() -> None:
    rows = sample_rows([group()], torch.tensor([0.5, 0.5, -0.25]))
    assert [row["advantages"] for row in rows] == [[0.5, 0.5], [-0.25]]
    assert [(row["group"], row["sample"], row["length"]) for row in rows] == [(9, 0, 2), (9, 1, 1)]
    assert rows[0]["rows"][0]["behaviour_logprobs"] == [0.0, 0.0, -0.5, -1.5]
    assert (rows[1]["response"], rows[1]["stop_reason"], rows[1]["reward"]) == (INJECTION, "length", None)
    assert (rows[0]["notes"], rows[1]["notes"]) == ({"format/why": "two tags"}, {})
    assert (rows[1]["status"], rows[1]["error"]) == ("reward_error", "ValueError: no answer")


def test_advantages_are_optional_but_never_misaligned() -> None:
    assert [row["advantages"] for row in sample_rows([group()])] == [None, None]
    with pytest.raises(ValueError, match=r"shape \(2,\); the samples have 3 tokens"):
        sample_rows([group()], torch.zeros(2))


def test_view_of_a_group() -> None:
    view = view_group(group(), shown=1)  # the gold answer that was judged by, not the column it was read from
    assert (view.prompt, view.response, view.rewards, view.answer) == ("two and two?", INJECTION, (1.0, None), "4")
