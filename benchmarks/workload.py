"""What both sides work on: the same prompts, lengths and reward, from one generator and one seed.

Standard library only: the peers' environments read it too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

ROWS = 256


@dataclass(frozen=True)
class Workload:
    """A GRPO step: `prompts` x `samples` responses of at most `new_tokens`; `shots` worked examples before a question.

    prompt_tokens: about how many a prompt has, chat template included.
    """

    prompts: int
    samples: int
    new_tokens: int
    shots: int
    prompt_tokens: int

    @property
    def trained_tokens(self) -> int:
        """Of a step whose responses are all of full length."""
        return self.prompts * self.samples * self.new_tokens


WARM_UP = 2  # steps that are not counted: the second still takes new memory from the system
# Where lengths are the policy's own it must not move: after two to six updates from 32 samples each, one policy wrote 761 to 1,032
# tokens a step and the other 1,151 to 1,341, from a policy that writes about 1,050.
LEARNING_RATES = {"fixed": 1e-5, "natural": 1e-9}
WORKLOADS = {"short": Workload(8, 8, 32, 0, 45), "long": Workload(4, 8, 64, 8, 300)}


def rows(workload: Workload, count: int = ROWS, seed: int = 0) -> list[dict[str, str]]:
    """Questions for the largest of four numbers, and their answers."""
    draw = random.Random(seed)

    def example() -> tuple[str, str]:
        numbers = [draw.randint(1, 99) for _ in range(4)]
        return f"What is the largest number in this list: {', '.join(map(str, numbers))}?", str(max(numbers))

    found: list[dict[str, str]] = []
    for _ in range(count):
        question, answer = example()
        shown = [f"{asked} It is {largest}." for asked, largest in (example() for _ in range(workload.shots))]
        found.append({"question": "\n".join([*shown, question]), "answer": answer})
    return found


def contains_answer(response: str, answer: str) -> float:
    """1 where the answer stands anywhere in the response."""
    return float(answer in response)


def alternating(index: int) -> float:
    """The reward of the index-th sample of a step where every group must be mixed, whatever was sampled."""
    return float(index % 2)


def prompt_ids(sequences: int, group: int, length: int, seed: int) -> list[list[int]]:
    """Token ids to continue: each `group` sequences share a prompt. Speed does not depend on which tokens they are."""
    draw = random.Random(seed)
    prompts = [[draw.randint(100, 40_000) for _ in range(length)] for _ in range(sequences // group)]
    return [prompt for prompt in prompts for _ in range(group)]
