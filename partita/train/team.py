"""The models that a run trains, on all of its ranks: rank 0 leads by verbs, the others do what it does.

A verb is a method of a team. Rank 0 tells the others its name and arguments before it goes about it; they `follow` until rank
0 has no more to do. On one rank nothing is told. Within a verb all ranks take the same steps in the same order.
Left out: how a rank is lost. Whoever started the processes sees which of them ended first, and why.
"""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from partita.algo.algorithm import Algorithm
from partita.models.export import export_hf, export_scorer
from partita.models.load import ModelLoadError
from partita.models.lora import export_adapter
from partita.models.packed import PackedModel, take_weights, weights
from partita.ops.ranks import ALONE, Ranks, leave_in_the_end
from partita.report.metrics import Metrics
from partita.train.batch import RolloutBatch
from partita.train.checkpoint import Kept, load_checkpoint, save_checkpoint
from partita.train.config import ActorConfig
from partita.train.critic import Critic
from partita.train.learner import Learner
from partita.train.probed import logprobs_after
from partita.train.record import LearnRecord
from partita.train.stepper import Stepper

Given = ParamSpec("Given")
Found = TypeVar("Found")
Said = TypeVar("Said")


LOST = re.compile("gloo|connection (closed|reset)|broken pipe", re.IGNORECASE)


class RankLost(RuntimeError):
    """Another rank of the run has ended, and this one cannot go on without it."""


class Ranked(Protocol):
    """What has verbs."""

    @property
    def ranks(self) -> Ranks:
        """Who does what they say."""
        ...


Crew = TypeVar("Crew", bound=Ranked)


def verb(act: Callable[Concatenate[Crew, Given], Found]) -> Callable[Concatenate[Crew, Given], Found]:
    """A method that all ranks run when rank 0 calls it."""

    @wraps(act)
    def led(team: Crew, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        _tell(team.ranks, act.__name__, args, kwargs)
        with _together(team.ranks):
            return act(team, *args, **kwargs)

    return led


def each_verb(
    act: Callable[Concatenate[Crew, Given], Iterator[Found]],
) -> Callable[Concatenate[Crew, Given], Iterator[Found]]:
    """One that all ranks iterate to its end, from when rank 0 takes the first: whoever gets it may need none."""

    @wraps(act)
    def led(team: Crew, *args: Given.args, **kwargs: Given.kwargs) -> Iterator[Found]:
        _tell(team.ranks, act.__name__, args, kwargs)
        with _together(team.ranks):
            yield from act(team, *args, **kwargs)

    return led


def _tell(ranks: Ranks, *order: object) -> None:
    if not ranks.alone:
        told(ranks, order)


def follow(team: Ranked) -> None:
    """What a rank that does not lead does: each verb that rank 0 tells, until it tells that there are no more. Raises RankLost
    where rank 0 ended without having said so.
    """
    nothing: Any = None
    while (order := told(team.ranks, nothing)) is not None:
        name, args, kwargs = order
        with _together(team.ranks):
            done = getattr(type(team), name).__wrapped__(team, *args, **kwargs)
            if isinstance(done, Iterator):
                deque(done, maxlen=0)
    leave_in_the_end()


def dismiss(ranks: Ranks) -> None:
    """Rank 0 has no more to do: the others may go."""
    if not ranks.alone:
        told(ranks, None)
        leave_in_the_end()


def told(ranks: Ranks, value: Said) -> Said:
    """Rank 0's value, on every rank. Raises RankLost."""
    with _together(ranks):
        return ranks.told(value)


@contextmanager
def _together(ranks: Ranks) -> Iterator[None]:
    """Inside, that another rank is gone is a RankLost, whatever was being sent."""
    try:
        yield
    except RuntimeError as error:
        of_gloo = type(error) is RuntimeError and LOST.search(f"{error}")  # which raises no type of its own
        if not (of_gloo or isinstance(error, dist.DistError)):
            raise
        raise RankLost(
            f"rank {ranks.rank} of {ranks.size} lost the connection to another rank, which has ended: its own last words say "
            f"why ({str(error).splitlines()[0]})"
        ) from error


class Model(Protocol):
    """What trains a model."""

    @property
    def model(self) -> PackedModel:
        """The one that is trained."""
        ...

    @property
    def stepper(self) -> Stepper:
        """What moves it."""
        ...


Trains = TypeVar("Trains", bound=Model)


class Sampled(Generic[Trains]):
    """The verbs that an engine asks for of whoever trains what it samples from."""

    learner: Trains
    ranks: Ranks

    @each_verb
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Those of now, as an engine takes them; of several ranks one at a time, gathered as it is taken."""
        return weights(self.learner.model)

    @verb
    def logprobs(self, prompt_ids: Sequence[int], ids: Sequence[int], temperature: float) -> list[float]:
        """Of the ids that follow the prompt, under the weights of now."""
        return logprobs_after(self.learner.model, self.learner.stepper.precision(), prompt_ids, ids, temperature)

    @verb
    def export_adapter(self, folder: Path) -> None:
        """Write the adapters alone, as servers take them."""
        export_adapter(self.learner.model, folder, self.ranks)


@dataclass
class Team(Sampled[Learner]):
    """The policy's learner with its reference, the critic, and what else a run does with their weights.

    tokenizer: that of exports. refreshed: the reference changes while the run goes, and is in its checkpoints.
    """

    learner: Learner
    critic: Critic | None
    tokenizer: PreTrainedTokenizerBase
    refreshed: bool = False
    ranks: Ranks = ALONE

    @verb
    def enter(self, config: ActorConfig, temperature: float) -> None:
        """Learn by this section, at this temperature, from here on."""
        self.learner.config, self.learner.temperature = config, temperature

    @verb
    def score(self, rollout: RolloutBatch, algorithm: Algorithm) -> RolloutBatch:
        """Add the streams that the algorithm needs from before the first optimizer step, values included."""
        rollout = self.learner.score(rollout, algorithm)
        if self.critic is not None and "values" in algorithm.needs:
            rollout = self.critic.score(rollout)
        return rollout

    @verb
    def learn(
        self, rollout: RolloutBatch, algorithm: Algorithm, step: int, total_steps: int, *, whole: bool
    ) -> tuple[Metrics, LearnRecord]:
        """All optimizer steps of a train step, the critic's first: it learns alone while its warm-up lasts."""
        self.learner.total_steps = total_steps
        metrics, critic, warming = Metrics(), self.critic, False
        if critic is not None and algorithm.value is not None and not critic.config.shared:
            actor, critic.total_steps = self.learner.config, total_steps
            metrics = critic.learn(rollout, algorithm, step, actor.ppo_epochs, actor.ppo_n_minibatches)
            warming = step < critic.config.warmup_steps
        if warming:
            metrics.count("critic_only_steps")
            return metrics, LearnRecord()
        found, record = self.learner.learn(rollout, algorithm, step, whole=whole)
        metrics.merge(found)
        return metrics, record

    @verb
    def refresh(self) -> None:
        """Make the policy of now the reference."""
        assert self.learner.reference is not None, "asked of a run with a reference"
        take_weights(self.learner.reference, self.learner.model)

    @verb
    def save(self, root: Path, step: int, state: Mapping[str, Any], keep_last: int) -> None:
        """Write a checkpoint below `root`. Raises CheckpointError."""
        learner = self.learner
        save_checkpoint(
            root, step, learner.model, learner.stepper.optimizer, state, keep_last, self._beside(), self.ranks
        )

    @verb
    def load(self, folder: Path) -> dict[str, Any]:
        """Weights, moments and counters of a checkpoint, whose state this gives. Raises CheckpointError."""
        learner, critic = self.learner, self.critic
        state = load_checkpoint(folder, learner.model, learner.stepper.optimizer, self._beside(), self.ranks)
        learner.load_state_dict(state["learner"])
        if critic is not None:
            critic.load_state_dict(state["critic"])
        return state

    @verb
    def export(self, folder: Path) -> None:
        """Write the policy in Hugging Face's format."""
        export_hf(self.learner.model, self.tokenizer, folder, self.ranks)

    @verb
    def export_critic(self, folder: Path) -> None:
        """Write the critic as a sequence-classification model; where there is no such class, a warning."""
        assert self.critic is not None, "asked of a run with a critic"
        try:
            export_scorer(self.critic.model, self.tokenizer, folder, ranks=self.ranks)
        except ModelLoadError as error:  # the run is not worth less for it
            warnings.warn(f"the critic is not exported: {error}", stacklevel=2)

    def _beside(self) -> dict[str, Kept]:
        """What a checkpoint holds beside the policy, by name: a critic of its own, and a reference that was refreshed."""
        found = dict[str, Kept]()
        if self.critic is not None and not self.critic.config.shared:
            found["critic"] = (self.critic.model, self.critic.stepper.optimizer)
        if self.learner.reference is not None and self.refreshed:
            found["reference"] = (self.learner.reference, None)
        return found
