"""Ten seconds of the real work on this machine: decode steps at the run's concurrency, a forward and backward pass at its token
budget, an optimizer's step, an update of the engine's weights.

Left out: rewards and what else a step has, which is a few percent; and other models, whose time follows from their size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.engine.api import Completion, Draw, Engine, Request
from partita.engine.config import compute_dtype
from partita.engine.layouts import DecodeLayout
from partita.models.attention import Rule
from partita.models.load import LoadedModel
from partita.models.packed import weights
from partita.ops.packing import pack
from partita.ops.threads import release_threads
from partita.plan.batch import Batch, Lengths
from partita.plan.sizes import Sizes
from partita.plan.speed import Machine, Reading, Speed, learn_flop, mean_length
from partita.records import Group, Prompt, Row, Sample
from partita.run import RunConfig
from partita.run_models import open_engine, recompute
from partita.steptimes import Clocked
from partita.train.batch import RolloutBatch, collate
from partita.train.config import ActorConfig, MicroBatchConfig
from partita.train.learner import Learner

SECONDS = 10.0
STREAM = 0x9A  # of uniforms: no run's samples are these
DECODING, LEARNING = 0.3, 0.25
"""Shares of the time for decode steps of all slots, and for each of two passes."""
FIRST_TOKENS, LEAST_TOKENS, WHOLE = 256, 64, 1 << 30
FEWEST_STEPS = 4
APART = 1.5
"""How many times as much work a second point must be for a line through both."""


@dataclass(frozen=True)
class Calibrated:
    """What was measured, and how long responses are then expected to be."""

    speed: Speed
    response: float


def calibrate(config: RunConfig, batch: Batch, lengths: Lengths, sizes: Sizes, prompts: Sequence[Prompt]) -> Calibrated:
    """Load the policy and its engine, and measure. Needs as much memory as the plan says of the config `alone`."""
    local = alone(config)
    loaded, engine, device = open_engine(local)
    try:
        rows = min(config.rollout.max_concurrent_rollouts, batch.samples)
        decoded = _decode(engine, local, loaded, prompts, rows)
        release_threads()
        seen = _attention(sizes, rows, lengths, device, compute_dtype(config.rollout.dtype, device))
        found = _learn(local, loaded, batch, lengths, sizes, prompts)
        began = time.perf_counter()
        engine.publish(weights(loaded.model), 1)
        published = time.perf_counter() - began
    finally:
        engine.close()
    response = mean_length(decoded.stop, config.gconfig.max_new_tokens)
    speed = Speed(
        decoded.step, decoded.row, seen, decoded.context, decoded.prefill, found.reading, found.learn, found.fixed,
        found.forward, found.optimizer, published, decoded.stop, "measured here, with this model",
    )  # fmt: skip
    return Calibrated(speed, response)


def alone(config: RunConfig) -> RunConfig:
    """The run in one process."""
    allocation = replace(config.allocation, learners=1, servers=0)
    return replace(config, allocation=allocation, rollout=replace(config.rollout, backend="local", servers=()))


@dataclass(frozen=True)
class _Decoded:
    step: float
    row: float
    context: float
    prefill: float
    stop: float | None


def _decode(engine: Engine, config: RunConfig, loaded: LoadedModel, prompts: Sequence[Prompt], rows: int) -> _Decoded:
    """Decode steps of all slots and of a quarter of them; a straight line through both."""
    most = config.gconfig.max_new_tokens
    with _counted(engine, rows) as first:
        _sample(engine, config, loaded, prompts, rows, min(most, FEWEST_STEPS + 1))
    each = first["decode_seconds"] / max(1, first["decode_steps"])
    steps = max(FEWEST_STEPS, int(SECONDS * DECODING / max(each, 1e-6)))
    with _counted(engine, rows) as many:
        done = _sample(engine, config, loaded, prompts, rows, min(most, steps + 1))
    few, fewer = dict[str, float](), max(1, rows // 4)
    if fewer < rows:
        with _counted(engine, fewer) as few:
            _sample(engine, config, loaded, prompts, fewer, min(most, max(FEWEST_STEPS, steps // 3) + 1))
    tokens, ended = sum(len(one.ids) for one in done), sum(one.stop_reason == "stop" for one in done)
    step, row = _line(many, few, rows, fewer)
    lengths = [len(prompts[index % len(prompts)].ids) for index in range(rows)]
    context = statistics.mean(lengths) + tokens / len(done) / 2
    prefill = many["prefill_seconds"] / max(1.0, many["prompt_tokens"])
    return _Decoded(step, row, context, prefill, ended / max(tokens, 1))


def _line(many: dict[str, float], few: dict[str, float], rows: int, fewer: int) -> tuple[float, float]:
    """Seconds of a step without rows, and of each row. A step has as many rows as tokens came out of it, on average."""
    points = [
        (one["decode_tokens"] / one["decode_steps"], one["decode_seconds"] / one["decode_steps"])
        for one in (few, many)
        if one.get("decode_steps")
    ]
    if len(points) < 2 or points[1][0] - points[0][0] < 1:
        seconds = points[-1][1] if points else 0.0
        return seconds / 2, seconds / 2 / max(rows, 1)  # half is reading weights: what two points would tell
    (x0, y0), (x1, y1) = points
    slope = max(0.0, (y1 - y0) / (x1 - x0))
    return max(0.0, y1 - slope * x1), slope


@contextmanager
def _counted(engine: Engine, rows: int) -> Iterator[dict[str, float]]:
    """What the engine counts inside, where `rows` responses start; `decode_tokens` are all but their first ones."""
    found, before = dict[str, float](), _counts(engine)
    yield found
    found |= {name: value - before[name] for name, value in _counts(engine).items()}
    found["decode_tokens"] = found["tokens"] - rows


def _counts(engine: Engine) -> dict[str, float]:
    assert isinstance(engine, Clocked), "the built-in engine counts its seconds"
    return {name: float(value) for name, value in vars(engine.stats()).items()}


def _sample(
    engine: Engine, config: RunConfig, loaded: LoadedModel, prompts: Sequence[Prompt], rows: int, tokens: int
) -> list[Completion]:
    """Groups of the run's size, as a train step asks for them."""
    sampling = replace(config.gconfig.sampling(loaded.stop_ids), max_new_tokens=tokens, min_new_tokens=0)
    requests = [
        Request(
            prompts[(row // config.gconfig.n_samples) % len(prompts)].ids, sampling, Draw(config.seed, STREAM, row, 0)
        )
        for row in range(rows)
    ]
    futures = engine.submit(requests)
    return [future.result() for future in futures]


def _attention(sizes: Sizes, rows: int, lengths: Lengths, device: torch.device, dtype: torch.dtype) -> float:
    """Seconds that a decode step takes more for each row and each token that it sees: of all layers, between the context after the
    prompt and that at the end of the longest response.
    """
    short, long = max(16, int(lengths.prompt)), max(64, lengths.longest_row)
    taken = [min(_attended(sizes, rows, length, device, dtype) for _ in range(3)) for length in (short, long)]
    return max(0.0, (taken[1] - taken[0]) / (long - short)) * sizes.layers / rows if long > short else 0.0


def _attended(sizes: Sizes, rows: int, length: int, device: torch.device, dtype: torch.dtype) -> float:
    shape = (rows, sizes.keys, length, sizes.width)
    k, v = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
    q = torch.zeros(rows, sizes.queries, 1, sizes.width, dtype=dtype, device=device)
    layout = DecodeLayout(torch.full((rows,), length - 1, device=device), full=True)
    with torch.inference_mode():
        layout.attend(q, k, v, Rule(1.0, None, None, None))
        began = time.perf_counter()
        layout.attend(q, k, v, Rule(1.0, None, None, None))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began


@dataclass(frozen=True)
class Learned:
    """Seconds of a pass as one micro-batch, and of an optimizer step."""

    reading: Reading
    learn: float
    forward: float
    optimizer: float
    fixed: float = 0.0


def _learn(
    config: RunConfig, loaded: LoadedModel, batch: Batch, lengths: Lengths, sizes: Sizes, prompts: Sequence[Prompt]
) -> Learned:
    """Steps of the learner on made-up responses: a small one, which says how many tokens there is time for, and one of as many; a
    straight line through both. Each is taken twice, for its arrays are new to the process. Weights move, and are thrown away.
    """
    model = loaded.model
    if config.actor.gradient_checkpointing:
        recompute(model)
    actor = replace(
        ActorConfig(), path=config.actor.path, dtype=config.actor.dtype, mb_spec=MicroBatchConfig(WHOLE),
        entropy_coef=config.actor.entropy_coef, gradient_checkpointing=config.actor.gradient_checkpointing,
        lora=config.actor.lora, skip_dead_samples=False,
    )  # fmt: skip
    learner = Learner(
        model, actor, compute_dtype(actor.dtype, model.device), config.gconfig.temperature, 1, config.seed
    )
    target = batch.actor.largest
    made = _made(learner, config, lengths, prompts, min(FIRST_TOKENS, target))
    _step(learner, made)
    small = _step(learner, made)
    rate = small.learn / small.reading.tokens
    made = _made(learner, config, lengths, prompts, int(max(LEAST_TOKENS, min(target, SECONDS * LEARNING / rate))))
    _step(learner, made)
    large = _step(learner, made)
    fixed = fixed_seconds(sizes, small, large)
    return replace(large, learn=large.learn - fixed, fixed=fixed)


def fixed_seconds(sizes: Sizes, small: Learned, large: Learned) -> float:
    """Seconds of a micro-batch of no tokens; 0 where the two are too close to tell."""
    x0, x1 = (learn_flop(sizes, one.reading) for one in (small, large))
    if x1 < APART * x0 or large.learn <= small.learn:
        return 0.0
    return max(0.0, small.learn - x0 * (large.learn - small.learn) / (x1 - x0))


def _made(
    learner: Learner, config: RunConfig, lengths: Lengths, prompts: Sequence[Prompt], tokens: int
) -> tuple[Algorithm, RolloutBatch]:
    """About so many model-input tokens, credited."""
    groups = _groups(config, lengths, prompts, tokens, learner.model.vocabulary)
    samples = max(len(group.samples) for group in groups)
    algorithm = compose(learner.config, n_samples=samples, max_new_tokens=lengths.longest_response)
    rollout = collate(groups, seed=config.seed, version=0)
    return algorithm, rollout.with_batch(algorithm.credit(rollout.batch))


def _step(learner: Learner, made: tuple[Algorithm, RolloutBatch]) -> Learned:
    """As one micro-batch; and once more without gradient."""
    algorithm, rollout = made
    packed = pack(rollout.rows, rollout.group_of_sample)
    learner.timer.take()
    learner.learn(rollout, algorithm, 0)
    times = learner.timer.take()
    began = time.perf_counter()
    with torch.no_grad(), learner.stepper.precision():
        said = learner.model(packed, temperature=learner.temperature)
        float(said.logprobs_T[:1].sum())  # a device is waited for
    forward = time.perf_counter() - began
    row = statistics.mean(len(row.ids) for rows in rollout.rows for row in rows)
    reading = Reading(len(packed.ids_N), len(packed.source_T), row)
    return Learned(reading, times["time/forward_backward"], forward, times["time/optimizer"])


def _groups(
    config: RunConfig, lengths: Lengths, prompts: Sequence[Prompt], tokens: int, vocabulary: int
) -> list[Group]:
    """Groups of the run's size, of real prompts and random responses of the expected length, up to so many tokens."""
    response, count = max(2, round(lengths.response)), config.gconfig.n_samples
    generator = torch.Generator().manual_seed(config.seed)
    found, used = list[Group](), 0
    while used < tokens or not found:
        prompt = prompts[len(found) % len(prompts)]
        fit = max(2, min(count, (tokens - used - len(prompt.ids)) // response))
        members = [_sample_of(prompt, response, index, vocabulary, generator) for index in range(fit)]
        found.append(Group(len(found), prompt, members))
        used += len(prompt.ids) + fit * response
    return found


def _sample_of(prompt: Prompt, response: int, index: int, vocabulary: int, generator: torch.Generator) -> Sample:
    ids = torch.randint(0, vocabulary, (response,), generator=generator).tolist()
    before = len(prompt.ids)
    row = Row(
        [*prompt.ids, *ids], [False] * before + [True] * response, [0.0] * before + [-10.0] * response,
        [-1] * before + [0] * response,
    )  # fmt: skip
    return Sample(rows=[row], stop_reason="length", text="", reward=float(index % 2))


def machine_here(device: torch.device, dtype: torch.dtype) -> Machine:
    """Rates in a fraction of a second, without any model: one square product, and one copy."""
    size = 1024 if device.type == "cpu" else 8192
    a = torch.ones(size, size, dtype=dtype, device=device)
    flop = 2 * size**3 / _fastest(device, lambda: a @ a)
    x = torch.ones(1 << 25, device=device)
    y = torch.empty_like(x)
    return Machine(flop, 2 * x.nbytes / _fastest(device, lambda: y.copy_(x)))


def _fastest(device: torch.device, work: Any) -> float:
    taken = list[float]()
    for _ in range(5):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return min(taken)
