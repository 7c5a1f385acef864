"""One failed reward among 64 in the real loop: it is counted, shown and not trained on, and the run goes on."""

import json
from pathlib import Path

import pytest
from test_loop import make, run

from partita.records import Prompt
from partita.tasks.reward import Scored


class FailsOnce:
    """Reward 1 when the first sampled token is 3; the tenth call of the run fails."""

    calls = 0

    async def score(self, prompt: Prompt, text: str, ids, stop_reason) -> Scored:
        self.calls += 1
        if self.calls == 10:
            return Scored(None, {}, "reward_error", "first: ZeroDivisionError")
        return Scored(float(ids[0] == 3), {"first": float(ids[0] == 3)})


@pytest.mark.parametrize("name", ["grpo", "drgrpo", "rloo"])
def test_one_failed_reward_of_sixty_four(tmp_path: Path, name: str) -> None:
    made = make(tmp_path, name, steps=2)
    made.rollouts.scorer, made.rollouts.n_samples = FailsOnce(), 16
    first, second = run(made)
    assert first["reward/error_share"] == 1 / 64
    assert second["reward/error_share"] == 0.0
    rows = [json.loads(line) for line in (tmp_path / "samples" / "step_000001.jsonl").read_text().splitlines()]
    [failed] = [row for row in rows if row["status"] == "reward_error"]
    assert failed["reward"] is None
    assert failed["advantages"] == [0.0] * failed["length"]
    scored = [row for row in rows if row["status"] == "ok"]
    assert len(scored) == 63
    assert first["reward/mean"] == pytest.approx(sum(row["reward"] for row in scored) / 63)
    assert first["effective_tokens"] == sum(row["length"] for row in scored)
    assert first["effective_tokens"] == first["response_tokens"] - failed["length"]
