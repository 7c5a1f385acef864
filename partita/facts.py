"""What the console says before the first step: what is trained on what, at which cost, and what the config's keys do not do.

Left out: how lines are shown (`report`), and the judgement of single keys (`algo.review` and `idle`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from partita.algo.algorithm import Algorithm
from partita.algo.conflicts import MASKS_ONLY
from partita.algo.review import review
from partita.ends import lines_of
from partita.engine.config import compute_dtype
from partita.idle import never_begun, without_effect
from partita.models.load import LoadedModel
from partita.rollout.named import SINGLE
from partita.run import Plan, RunConfig
from partita.runner import Phase, Run
from partita.stages import changes, ends

SCORED = {
    "prox": "old log-probs",
    "old_entropy": "entropy before the step",
    "ref": "log-probs of the reference",
    "kl_full_ref": "the reference's whole distribution",
    "kl_full_score": "the reference's whole distribution before the step",
    "kl_after": "log-probs after the last optimizer step",
    "kl_full_old": "the old policy's whole distribution",
}
"""Streams that cost a forward pass beside the one that learns."""
MIB = 2**20


def facts_of(run: Run, plan: Plan, loaded: LoadedModel, held_out: bool, notes: Sequence[str]) -> dict[str, str]:
    """Name to text. held_out: whether there are rows to evaluate on. notes: about the data and the model."""
    config, device = run.config, loaded.model.device
    parameters = sum(p.numel() for p in loaded.model.parameters())
    trained = sum(p.numel() for p in loaded.model.parameters() if p.requires_grad)
    adapted = f", {trained / 1e6:.1f} M of them trained, in adapters" if config.actor.lora else ""
    facts = {
        "model": f"{config.actor.path}, {parameters / 1e6:.1f} M parameters{adapted}, {loaded.path_kind}",
        "task": _task(run),
        "algorithm": config.algorithm or "keys of actor",
        "batch": _batch(run.phase.config),
        "precision": f"learns in {_word(compute_dtype(config.actor.dtype, device))} on float32 weights, "
        f"samples in {_word(compute_dtype(config.rollout.dtype, device))}, on {device}",
    }
    groups = {
        "stages": _stages(run),
        "filter": tuple(dict.fromkeys(line for phase in run.phases for line in _filter(phase))),
        "ends": lines_of(config.max_hours, config.max_tokens, config.early_stop),
        "controllers": tuple(f"{name}: {_state(state)}" for name, state in run.controls.state_dict().items()),
        "scores": _scores(run.phase.config, run.algorithm),
        "reference": _reference(run),
        "critic": _critic(run),
        "old policy": _old_copy(plan, parameters),
        "data": notes,
        **_reviewed(run, plan, held_out),
    }
    return facts | {name: "; ".join(lines) for name, lines in groups.items() if lines}


def _task(run: Run) -> str:
    """Which rows, who judges the answers, and how an answer comes about where that is not one completion."""
    workflow = run.config.rollout.workflow
    told = "" if workflow == SINGLE else f", workflow {workflow}"
    judged = ", ".join(run.part_names) or "by the workflow"
    return f"{run.config.train_dataset.path}, reward {judged}{told}"


def _batch(config: RunConfig) -> str:
    sampled, adaptive = config.gconfig, config.gconfig.adaptive_n
    samples = f"{sampled.n_samples} samples"
    if adaptive is not None:
        samples += f" on average ({adaptive.min} to {adaptive.max}, by {adaptive.score})"
    if config.rollout.policy == "starting":
        samples += " of the starting policy"
    return f"{config.train_dataset.batch_size} prompts x {samples}, at most {sampled.max_new_tokens} new tokens"


def _stages(run: Run) -> tuple[str, ...]:
    """Each stage, the one that the run is in marked where it has been resumed."""
    lines = [f"[{i}] {ends(one.until)}: {changes(one)}" for i, one in enumerate(run.config.stages)]
    if lines and run.first_step > 0:
        lines[run.progress.index] += f" (now, from step {run.first_step + 1} on)"
    return tuple(lines)


def _filter(phase: Phase) -> Iterator[str]:
    """How a batch is filled, where that is not one group after the other; and what it means that some groups wait."""
    sampling, asked = phase.config.actor.dynamic_sampling, phase.refill
    if sampling is None or asked is None:
        return
    if sampling.oversample > 1:
        yield f"rounds start {sampling.oversample:g} times the groups that are lacking, and the batch takes them in start order"
    if sampling.on_limit != "error":
        yield f"after {sampling.max_batches} rounds: {sampling.on_limit}"
    if not sampling.keeps_surplus:
        return
    waits = f"groups beyond the batch wait at most {sampling.surplus_steps} steps, with the sampler's own log-probs"
    old = "" if phase.config.rollout.policy == "starting" else ", and are older by as many weight versions"
    yield f"{waits}{old}{'' if _weighs_behaviour(phase.config) or not old else UNWEIGHED}"


UNWEIGHED = " (they count like new ones; actor.use_decoupled_loss=true weighs them)"


def _weighs_behaviour(config: RunConfig) -> bool:
    """Whether the objective sees that a sample is of another policy than that of before the step."""
    keys = config.actor
    weighed = keys.use_decoupled_loss or (keys.correction is not None and keys.correction.kind not in MASKS_ONLY)
    return weighed or (keys.importance_sampling_level != "none" and not keys.recompute_logprob)


def _state(state: dict[str, float]) -> str:
    """The first numbers tell where a rule stands; what it remembers of past steps follows them."""
    return ", ".join(f"{name} {value:g}" for name, value in state.items() if "/" not in name)


def _scores(config: RunConfig, algorithm: Algorithm) -> tuple[str, ...]:
    """What needs a forward pass of its own, and the parts that ask for it."""
    steps, lines = config.actor.ppo_epochs * config.actor.ppo_n_minibatches, list[str]()
    parts = (*algorithm.shape, algorithm.assign, algorithm.center, *algorithm.correct, *algorithm.penalties)
    for stream, words in SCORED.items():
        why = [type(part).__name__ for part in parts if stream in part.needs]
        if stream == "prox" and algorithm.center.scored:
            why += [type(part).__name__ for part in algorithm.correct if not part.reads_current]
            why += [f"{steps} optimizer steps per batch"] if steps > 1 else []
        if why:
            lines.append(f"{words} (for {', '.join(why)})")
    return tuple(lines)


def _reference(run: Run) -> tuple[str, ...]:
    reference = run.learner.reference
    if reference is None:
        return ()
    held = list(reference.parameters())
    if held[0] is next(run.learner.model.lm.parameters(), None):
        return ("the policy without its adapters, no memory of its own, for the KL term",)
    where = run.config.ref.path if run.config.ref and run.config.ref.path else "the starting policy"
    waits = "" if held[0].device == run.learner.model.device else " in main memory"
    return (f"{where}, {_word(held[0].dtype)}, {sum(p.nbytes for p in held) / MIB:.0f} MiB{waits}, for the KL term",)


def _critic(run: Run) -> tuple[str, ...]:
    """What it is made of and what it holds: master weights, gradients and two moments, all float32."""
    critic = run.team.critic
    if critic is None:
        return ()
    if critic.config.shared:
        return (f"a value head on the policy, in one backward pass with it, weight {critic.config.vf_coef:g}",)
    held = sum(p.nbytes * (4 if p.requires_grad else 1) for p in critic.model.parameters()) / MIB
    warmup = f", alone for {critic.config.warmup_steps} steps" if critic.config.warmup_steps else ""
    return (f"{critic.config.path or 'the starting policy'} with a value head, {held:.0f} MiB with optimizer{warmup}",)


def _old_copy(plan: Plan, parameters: int) -> tuple[str, ...]:
    for one in plan.stages:
        steps = one.config.actor.ppo_epochs * one.config.actor.ppo_n_minibatches
        if "kl_full_old" in one.algorithm.needs and steps > 1:
            size = parameters * torch.float32.itemsize / MIB
            return (f"a copy, float32, {size:.0f} MiB, for the KL of a step over the whole vocabulary",)
    return ()


def _reviewed(run: Run, plan: Plan, held_out: bool) -> dict[str, tuple[str, ...]]:
    """Lines on the keys. What has an effect in one stage is not idle."""
    idle: list[tuple[str, ...]] = []
    assumed, advice = dict[str, None](), dict[str, None]()
    for phase in run.phases:
        sampled = phase.config.gconfig
        found = review(phase.config.actor, n_samples=sampled.n_samples, max_new_tokens=sampled.max_new_tokens)
        filtered = phase.refill is not None
        needs = plan.needs if len(plan.stages) > 1 else phase.algorithm.needs
        beside = without_effect(phase.config, needs=needs, filtered=filtered, held_out=held_out)
        idle.append((*found.inactive, *beside))
        assumed |= dict.fromkeys(found.assumed)
        advice |= dict.fromkeys(found.advice)
    everywhere = [line for line in idle[0] if all(line in lines for lines in idle[1:])]
    return {
        "inactive": (*everywhere, *never_begun(run.config)),
        "assumed": (*assumed, *_assumed_constant(run)),
        "advice": tuple(advice),
    }


def _assumed_constant(run: Run) -> Iterable[str]:
    """Of a run with stages: that of a run without is the review's line."""
    own = run.config.actor.loss_agg_constant
    filled = {phase.config.actor.loss_agg_constant for phase in run.phases} - {own}
    if run.config.stages and own is None and filled:
        yield f"actor.loss_agg_constant {filled.pop():g}: the largest gconfig.max_new_tokens of all stages"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
