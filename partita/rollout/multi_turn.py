"""The workflow of many turns with an environment: the policy acts, the environment answers, until one of them ends it.

Left out: what an environment is (`rollout.environment`), and how the conversation becomes token rows (`rollout.dialogue`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from partita.records import Sample
from partita.rollout.dialogue import Dialogue, Rows, check_rows
from partita.rollout.environment import EnvironmentFailed, World
from partita.rollout.workflow import Episode
from partita.tasks.functions import load_object
from partita.tasks.reward import Scored
from partita.tasks.reward_threads import Threads

PART = "environment"
"""What an environment's reward is called among the parts."""
Steps = list[tuple[int, float]]


@dataclass(eq=False)
class MultiTurn:
    """A workflow with an environment. All fields are keys of `rollout.workflow_kwargs`.

    environment: a class, or a function that makes one, or its name as path/file.py:Name; made anew for each sample with
    environment_kwargs. max_turns: the policy's turns. reward: "environment" adds up the rewards of its steps, "task" asks the
    reward functions about all that the policy wrote. rows: see `rollout.dialogue`. timeout_seconds: of each call of an
    environment. threads: most calls at the same time.

    The environment judges every turn, also one that was cut at the token limit; that one is the last. `stop_reason` is "length"
    where the last turn was cut, where the environment cuts the episode, and where max_turns or the context ends it. Raises
    ValueError for values that cannot work, LoadError for a name that leads nowhere.
    """

    environment: str | Callable[..., Any]
    environment_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    max_turns: int = 8
    reward: Literal["environment", "task"] = "environment"
    rows: Rows = "one"
    timeout_seconds: float = 60.0
    threads: int = 256

    def __post_init__(self) -> None:
        if self.max_turns < 1 or self.timeout_seconds <= 0 or self.threads < 1:
            raise ValueError("max_turns and threads must be at least 1, timeout_seconds above 0")
        if self.reward not in ("environment", "task"):
            raise ValueError(f"reward={self.reward!r}; expected environment or task")
        check_rows(self.rows)
        made = load_object(self.environment) if isinstance(self.environment, str) else self.environment
        if not callable(made):
            raise ValueError(
                f"environment={self.environment!r} is a {type(made).__name__}; expected a class or a function"
            )
        self._make = partial(made, **self.environment_kwargs)
        self._threads = Threads[Any](self.threads)
        self._stuck = False

    async def run(self, episode: Episode) -> Sample:
        """See `Workflow`. What goes wrong in the environment is the sample's error, and not trained on."""
        world, talk = World(self._make, self._threads, self.timeout_seconds), Dialogue(episode, rows=self.rows)
        try:
            opening = await world.reset(episode.prompt, episode.seed)
            talk = Dialogue(episode, opening, self.rows)
            steps = await self._play(talk, world)
            await world.close()
            scored = await self._scored(episode, talk, steps)
            failed = 0.0
        except EnvironmentFailed as error:
            scored, failed = Scored(None, status="reward_error", error=f"{PART}: {error}"), 1.0
        finally:
            self._stuck = self._stuck or world.stuck
        return talk.sample(scored, {"environment/error_share": failed})

    async def _play(self, talk: Dialogue, world: World) -> Steps:
        """Rewards, each at the last token of its turn, counted over the tokens that the policy wrote."""
        if talk.over:
            raise EnvironmentFailed("what reset returned fills the context: there is no room for a token of the policy")
        steps = Steps()
        while True:
            said = await talk.ask()
            if said.stop_reason == "abort":
                return steps
            step = await world.step(said.text)
            if step.reward is not None:
                steps.append((talk.length - 1, step.reward))
            if step.terminated:
                return steps
            if step.truncated or talk.turns == self.max_turns or not talk.tell(step.observation):
                talk.cut()
                return steps

    async def _scored(self, episode: Episode, talk: Dialogue, steps: Steps) -> Scored:
        if self.reward == "task":
            return await episode.score(talk.text, talk.trained, talk.stop_reason, talk.transcript)
        if not steps:
            raise EnvironmentFailed(
                "no step had a reward; rollout.workflow_kwargs.reward=task asks the reward functions"
            )
        total = sum(worth for _, worth in steps)
        return Scored(total, {PART: total}, step_rewards=steps)

    def close(self) -> None:
        """End the threads, unless a call that overran its limit is still going on in one."""
        if not self._stuck:
            self._threads.close()
