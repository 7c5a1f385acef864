"""A run before its start: the arithmetic of its batches, what its processes hold, how long a step takes, and whether it fits.

Left out: the formulas (`plan.batch`, `plan.memory`, `plan.speed`, `plan.scaling`), and how the plan is shown (`plan.show`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from partita.build import longest
from partita.engine.config import compute_dtype
from partita.look import known_of
from partita.plan.batch import Lengths
from partita.plan.calibrate import alone, calibrate, machine_here
from partita.plan.held import Models, Place, Stage, learner, models_of, server, stage_of
from partita.plan.room import Change, Holding, Room, advice, need, refusal, resident, room_here
from partita.plan.scaling import FAST_LINK, SLOW_LINK, Cluster, scaled
from partita.plan.speed import Seconds, Speed, Work, mean_length, seconds_of, speed_from_flop
from partita.records import Prompt
from partita.rollout.named import SINGLE
from partita.run import Plan, RunConfig, composed
from partita.tasks.dataset import load_rows
from partita.tasks.prompt import render_prompts

LOADING = 64 << 20
"""Bytes that a process takes beside its models and beside what this one has: kernels' workspaces, threads, reports."""
CUDA_CONTEXT = 600 << 20
"""Bytes of a GPU that CUDA takes for a process."""


@dataclass(frozen=True)
class Request:
    """What to plan with. memory: GiB that there are, where that is not this machine; response: expected tokens of a response; link:
    bytes a second between processes.
    """

    calibrate: bool = True
    memory: float | None = None
    response: float | None = None
    link: float | None = None


@dataclass(frozen=True)
class StagePlan:
    """A stage: its numbers, what processes hold in it at most, and how long a step takes. need: bytes for the longest responses;
    expected: for those that are expected.
    """

    stage: Stage
    holdings: tuple[Holding, ...]
    need: float
    expected: float
    seconds: Seconds


@dataclass(frozen=True)
class RunPlan:
    """The whole plan. steps: train steps; changes: where it does not fit, what makes it fit; notes: what was assumed."""

    config: RunConfig
    models: Models
    stages: tuple[StagePlan, ...]
    room: Room
    steps: int
    speed: Speed
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def need(self) -> float:
        """Bytes of the stage that needs most."""
        return max(one.need for one in self.stages)

    @property
    def expected(self) -> float:
        """The same with responses of the expected length."""
        return max(one.expected for one in self.stages)

    @property
    def fits(self) -> bool:
        """Whether there is room for it."""
        return self.need <= self.room.bytes

    @property
    def seconds(self) -> float:
        """Of the run: each stage's steps, as far as they are known; a stage without an end of its own shares what is left."""
        ends = [one.until.step if one.until is not None else None for one in self.config.stages] or [None]
        total, begun = 0.0, 0
        for one, end in zip(self.stages, ends, strict=True):
            until = min(self.steps, self.steps if end is None else end)
            total, begun = total + (until - begun) * one.seconds.step, until
        return total

    def check(self) -> None:
        """Raise ConfigError where it does not fit, with the keys to change."""
        if not self.fits:
            raise refusal(self.need, self.room, self.changes)


def plan_run(config: RunConfig, request: Request) -> RunPlan:
    """Plan a run. Raises what the run would raise at its start, and ModelLoadError."""
    plan, prompts, context = composed(config), *_prompts(config)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models = models_of(config, plan.needs, context)
    place = Place(device, resident() + LOADING, 0.0 if device.type == "cpu" else CUDA_CONTEXT)
    room = room_here(device, request.memory)
    stages = [stage_of(one, _lengths(one.config, prompts, request.response), models) for one in plan.stages]
    needed = partial(_needed, prompts=prompts, request=request, place=place, room=room, context=context)
    held = [_holdings(stage, models, place, room) for stage in stages]
    most = max(need(one, room, config.cluster.nodes) for one in held)
    changes = () if most <= room.bytes else advice(config, room, needed)
    fits = request.calibrate and needed(alone(config)) <= room_here(device).bytes
    speed, notes = _speed(stages[0], models, prompts, place, request, fits=fits)
    if speed.stop is not None and request.response is None:
        stages = [_expected(stage, speed.stop, models) for stage in stages]
    of_machine = partial(need, room=room, nodes=config.cluster.nodes)
    made = tuple(
        StagePlan(
            stage,
            holdings,
            of_machine(holdings),
            of_machine(_holdings(_usual(stage), models, place, room)),
            _seconds(stage, models, speed, place, request),
        )
        for stage, holdings in zip(stages, held, strict=True)
    )
    steps = _steps(plan, len(prompts))
    return RunPlan(config, models, made, room, steps, speed, changes, (*notes, *_assumed(config, request, speed)))


def _prompts(config: RunConfig) -> tuple[Sequence[Prompt], int]:
    """The prompts that a run would draw from, and the most tokens of a row."""
    known, section = known_of(config.actor, config.tokenizer_path), config.train_dataset
    rows = load_rows(section, seed=config.seed)
    found = render_prompts(
        rows.rows, known.tokenizer, section, context=known.context, reserve=longest(config), section="train_dataset"
    )
    return found.prompts, known.context


def _lengths(config: RunConfig, prompts: Sequence[Prompt], response: float | None) -> Lengths:
    sizes = [len(prompt.ids) for prompt in prompts]
    most = config.gconfig.max_new_tokens
    return Lengths(sum(sizes) / len(sizes), max(sizes), float(most) if response is None else min(response, most), most)


def _expected(stage: Stage, stop: float, models: Models) -> Stage:
    """The stage with responses as long as the policy makes them now."""
    response = mean_length(stop, stage.lengths.longest_response)
    return stage_of(stage.planned, replace(stage.lengths, response=response), models)


def _usual(stage: Stage) -> Stage:
    """With passes over prompts and responses of the expected lengths; slots of the engine are as long as they may become."""
    return replace(stage, widest=stage.batch)


def _holdings(stage: Stage, models: Models, place: Place, room: Room) -> tuple[Holding, ...]:
    """Every kind of process, and how many of it there are."""
    learners, servers = stage.config.allocation.learners, stage.config.allocation.servers
    first = learner(stage, models, place)
    found = [Holding("learner", "learner" if learners == 1 else "learner 0", 1, first)]
    if learners > 1:
        rest = learner(stage, models, place, first=False)
        found.append(Holding("learner", "each other learner", learners - 1, rest))
    if servers:
        found.append(Holding("server", "each server", servers, server(stage, models, place, room.bytes)))
    return tuple(found)


def _needed(
    config: RunConfig, *, prompts: Sequence[Prompt], request: Request, place: Place, room: Room, context: int
) -> float:
    """Bytes that a changed config needs."""
    plan = composed(config)
    models = models_of(config, plan.needs, context)
    stages = [stage_of(one, _lengths(one.config, prompts, request.response), models) for one in plan.stages]
    return max(need(_holdings(stage, models, place, room), room, config.cluster.nodes) for stage in stages)


def _speed(
    stage: Stage, models: Models, prompts: Sequence[Prompt], place: Place, request: Request, *, fits: bool
) -> tuple[Speed, list[str]]:
    """Measured, or from operations where that is asked for or the model has no room here."""
    config = stage.config
    if fits:
        found = calibrate(config, stage.batch, stage.lengths, models.policy, prompts)
        return found.speed, []
    notes = ["not calibrated: in one process the run does not fit on this machine"] if request.calibrate else []
    dtype = compute_dtype(config.actor.dtype, place.device)
    widths = (compute_dtype(config.rollout.dtype, place.device).itemsize, dtype.itemsize)
    return speed_from_flop(machine_here(place.device, dtype), models.policy, _work(stage, models), widths), notes


def _work(stage: Stage, models: Models) -> Work:
    config, algorithm = stage.config, stage.planned.algorithm
    steps = config.actor.ppo_epochs * config.actor.ppo_n_minibatches
    asked = bool(algorithm.needs & {"prox", "old_entropy"}) or (steps > 1 and algorithm.center.scored)
    again = sum(name in algorithm.needs for name in ("ref", "kl_full_score", "kl_full_ref", "kl_after"))
    critic = models.critic if stage.batch.critic is not None else None
    return Work(
        stage.batch, stage.lengths, config.rollout.max_concurrent_rollouts, models.policy, critic, asked + again,
        int("values" in algorithm.needs), config.actor.gradient_checkpointing,
        config.critic is not None and config.critic.gradient_checkpointing,
    )  # fmt: skip


def _seconds(stage: Stage, models: Models, speed: Speed, place: Place, request: Request) -> Seconds:
    """Of a step, on all processes of the run."""
    config = stage.config
    learners, servers = config.allocation.learners, config.allocation.servers
    one = seconds_of(speed, _work(stage, models))
    if learners == 1 and servers == 0:
        return one
    link = request.link or (SLOW_LINK if place.on_cpu else FAST_LINK)
    here = math.ceil((learners + servers) / config.cluster.nodes)
    own = (config.allocation.learner.cpus, config.allocation.server.cpus)
    cores = torch.get_num_threads()
    shares = [min(1.0, (1 / here) if cpus is None else cpus / cores) if place.on_cpu else 1.0 for cpus in own]
    keeps = not config.actor.fsdp.reshard_after_forward
    dtypes = (config.actor.dtype, config.rollout.dtype)
    learned, sampled = (compute_dtype(name, place.device).itemsize for name in dtypes)
    cluster = Cluster(learners, servers, shares[0], shares[1], link, keeps, learned)
    return scaled(one, models.policy, stage.batch, cluster, sampled)


def _steps(plan: Plan, prompts: int) -> int:
    """Train steps at most."""
    config = plan.stages[0].config
    if config.total_train_steps is not None:
        return config.total_train_steps
    smallest = min(one.config.train_dataset.batch_size for one in plan.stages)
    return math.ceil((config.total_train_epochs or 1) * prompts / smallest)


def _assumed(config: RunConfig, request: Request, speed: Speed) -> list[str]:
    """What the numbers rest on."""
    found = ["all samples pass through the model; those that teach nothing are left out in a run"]
    if request.response is None and speed.stop is None:
        found.append("responses are as long as gconfig.max_new_tokens lets them; --response says what to expect")
    elif request.response is None:
        found.append("responses end as often as in the calibration: at their start, policies write as they were taught")
    if config.rollout.workflow != SINGLE:
        found.append(f"workflow {config.rollout.workflow}: a sample is counted as one answer; several turns take more")
    if config.actor.dynamic_sampling is not None:
        found.append("dynamic sampling: every group is counted once; what the filter throws away is sampled beside it")
    if config.rollout.backend != "local":
        found.append(f"the built-in engine stands for {config.rollout.backend} in the time of sampling")
    if config.allocation.learners > 1 or config.allocation.servers:
        found.append("several processes: times follow from one process's by the formulas of docs/scaling.md")
    return found
