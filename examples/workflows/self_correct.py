"""A workflow of one's own, whole: answer, look again, answer. Train: partita train examples/workflows/self_correct.yaml

The second answer is the one that counts, plus a little for having made a wrong first one right: without it a model learns to
answer once and repeat itself (SCoRe, Kumar et al. 2024, arXiv 2409.12917, section 4.2).
"""

from dataclasses import dataclass, replace

from partita.records import Sample
from partita.rollout.dialogue import Dialogue
from partita.rollout.workflow import Episode

LOOK_AGAIN = "Look at your answer again. Correct it if it is wrong, and give the final answer anew."


@dataclass
class SelfCorrect:
    """bonus: added for wrong then right, taken away for right then wrong. again: what is said between the answers."""

    bonus: float = 0.5
    again: str = LOOK_AGAIN

    async def run(self, episode: Episode) -> Sample:
        talk = Dialogue(episode)
        first = await talk.ask()
        before = await episode.score(first.text, first.ids, first.stop_reason)
        if not talk.tell(self.again):  # the first answer was cut, or nothing more fits the context
            return talk.sample(before)
        second = await talk.ask()
        after = await episode.score(second.text, second.ids, second.stop_reason, talk.transcript)
        if before.reward is None or after.reward is None:  # no reward is no zero
            return talk.sample(before if before.reward is None else after)
        change = after.reward - before.reward
        worth = replace(after, reward=after.reward + self.bonus * change)
        return talk.sample(worth, {"first/reward": before.reward, "second/reward": after.reward})
