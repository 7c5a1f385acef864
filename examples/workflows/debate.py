"""Two agents with the same weights debate, whole: each answers, reads the other's answer, and answers again.

Train: partita train examples/workflows/self_correct.yaml rollout.workflow=examples/workflows/debate.py:Debate \\
    '~rollout.workflow_kwargs'
Both conversations are trained: one sample with a row for each agent, and one reward, the mean of the two last answers
(Du et al. 2023, arXiv 2305.14325, who debate without training).
"""

import asyncio
from dataclasses import dataclass, replace

from partita.records import Sample
from partita.rollout.dialogue import Dialogue
from partita.rollout.workflow import Episode, sample_of

OTHER = "Another agent answered:\n\n{}\n\nUse what is right in it, and give your final answer anew."


@dataclass
class Debate:
    """rounds: how often each agent reads the other."""

    rounds: int = 1

    async def run(self, episode: Episode) -> Sample:
        agents = [Dialogue(episode), Dialogue(episode)]
        answers = await asyncio.gather(*(agent.ask() for agent in agents))
        for _ in range(self.rounds):
            told = [agent.tell(OTHER.format(other.text)) for agent, other in zip(agents, answers[::-1], strict=True)]
            spoken = await asyncio.gather(*(agent.ask() for agent in agents))
            answers = [new if went_on else old for new, old, went_on in zip(spoken, answers, told, strict=True)]
        scores = [await episode.score(one.text, one.ids, one.stop_reason) for one in answers]
        rows, text = [row for agent in agents for row in agent.rows()], "\n\n".join(agent.text for agent in agents)
        cut = next((agent.stop_reason for agent in agents if agent.over), "stop")
        failed = next((one for one in scores if one.reward is None), None)
        if failed is not None:
            return sample_of(rows, cut, text, failed)
        worth = replace(scores[0], reward=sum(one.reward or 0.0 for one in scores) / 2, step_rewards=[])
        return sample_of(rows, cut, text, worth)
