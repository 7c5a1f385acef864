"""Groups that passed the filter and found no place in their step's batch: they wait for a later one, first come, first served.

Left out: who puts them in and takes them out (`rollouts`), and what becomes of the weights meanwhile: what waits keeps the
sampler's log-probs and versions, so that the trainer knows how old it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from partita.records import Group, Prompt, Row, Sample


@dataclass(frozen=True)
class Waiting:
    """A group that passed, and how many steps had been taken when it was sampled."""

    group: Group
    version: int

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, exact through JSON. Of the prompt what is read after scoring: not the row it was made of."""
        prompt, samples = self.group.prompt, [asdict(sample) for sample in self.group.samples]
        shown = {"uid": prompt.uid, "ids": list(prompt.ids), "text": prompt.text, "answer": prompt.answer}
        return {"version": self.version, "serial": self.group.serial, "prompt": shown, "samples": samples}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Waiting:
        """The group that was saved."""
        shown = state["prompt"]
        prompt = Prompt(shown["uid"], tuple(shown["ids"]), shown["text"], {}, answer=shown["answer"])
        samples = [_sample(saved) for saved in state["samples"]]
        return cls(Group(state["serial"], prompt, samples), state["version"])


@dataclass
class SurplusCounts:
    """What happened to waiting groups in one step. used: trained on in this step. kept: wait after it. dropped: too old, or of a
    stage that has ended.
    """

    used: int = 0
    kept: int = 0
    dropped: int = 0


def _sample(saved: Mapping[str, Any]) -> Sample:
    rows = [Row(**row) for row in saved["rows"]]
    steps = [(at, value) for at, value in saved["step_rewards"]]
    return Sample(**{**saved, "rows": rows, "step_rewards": steps})
