import json

import pytest

from partita.tasks.graders.gym import GymError, reasoning_gym_score

COUNTDOWN = {"question": "Make 14 of 3 and 11.", "answer": "3 + 11", "metadata": {"numbers": [3, 11], "target": 14}}


@pytest.mark.slow
def test_the_task_s_own_scorer_judges():
    gym = pytest.importorskip("reasoning_gym")
    entry = gym.create_dataset("countdown", size=1, seed=1)[0]
    for row in (entry, {**entry, "metadata": json.dumps(entry["metadata"])}):
        assert reasoning_gym_score(f"<answer>{entry['metadata']['expression']}</answer>", row) == 1.0
        assert reasoning_gym_score("<answer>1</answer>", row) < 0.1
        assert reasoning_gym_score("<think>", row) < 0.1
    assert reasoning_gym_score("11 + 3", COUNTDOWN, dataset="countdown") == 1.0
    with pytest.raises(GymError, match=r"no_such_task: .*not registered"):
        reasoning_gym_score("1", COUNTDOWN, dataset="no_such_task")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"question": "?", "answer": "1"}, "the row has no metadata; its columns are question, answer"),
        ({**COUNTDOWN, "metadata": "{"}, "metadata is text and not JSON"),
        ({**COUNTDOWN, "metadata": [1]}, r"metadata is \[1\]; expected an object"),
        (COUNTDOWN, "no metadata.source_dataset; set `dataset`"),
    ],
)
def test_a_row_that_is_no_entry_says_why(row, why):
    with pytest.raises(GymError, match=why):
        reasoning_gym_score("1", row)
