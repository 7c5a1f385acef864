"""What `train/test_ranks.py` runs on one rank and on several: small learners over tiny models, and what they found.

As a script: joins the ranks of the environment, runs all jobs, and writes `<folder>/<rank>.pt`.
"""

import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.algo.norm import EmaCenter, EmaScale
from partita.algo.presets import PRESETS, keys_of
from partita.models.adapters import LoraConfig
from partita.models.attention import ATTENTION, register
from partita.models.families import tiny
from partita.models.lora import add_adapters, base_view
from partita.models.packed import PackedModel
from partita.models.parallel import ShardConfig, full, settle, shard
from partita.ops.packing import pack
from partita.ops.ranks import Ranks, join_ranks, leave_ranks
from partita.records import Group, Prompt, Row, Sample
from partita.train.batch import RolloutBatch, collate
from partita.train.config import ActorConfig, CriticConfig, MicroBatchConfig, OptimizerConfig
from partita.train.critic import Critic
from partita.train.learner import Learner

TIED, UNTIED = "Llama, tied embeddings (SmolLM2)", "Llama"
POISON = 90  # an id whose embedding the test of non-finite steps spoils
Found = dict[str, Any]


def sample(prompt: list[int], ids: list[int], reward: float | None, stop: str = "stop") -> Sample:
    """One row; None as reward: a sample that failed."""
    marks = [False] * len(prompt) + [True] * len(ids)
    row = Row([*prompt, *ids], marks, [-2.0 * t for t in marks], [t - 1 for t in marks])
    status = "ok" if reward is not None else "reward_error"
    steps = [(len(ids) - 1, 0.5 * (reward or 0.0))] if ids else []
    parts = {} if reward is None else {"a": reward, "b": 1.0 - reward / 2}
    return Sample([row], stop, "", reward, parts, steps, status=status)  # type: ignore[arg-type]


def rollout(step: int = 0) -> RolloutBatch:
    """Uneven lengths; a group that teaches nothing in many algorithms; a sample that failed before its first token."""
    told = [
        ([1, 2, 3], [([40, 50, 60], 1.0), ([41, 7], 0.0), ([5, 5, 5, 5, 9, 11, 13], 0.25)]),
        ([9, 8], [([70, 71], 1.0), ([6, 0, 77, 3], 1.0), ([2 + step, 80], 1.0)]),
        ([4, 4, 4, 4, 4, 4], [([30], 0.0), ([31, 32, 33], 1.0), ([], None)]),
    ]
    groups = [
        Group(g, Prompt(f"p{g}", tuple(prompt), "", {}), [sample(prompt, ids, reward) for ids, reward in answers])
        for g, (prompt, answers) in enumerate(told)
    ]
    return collate(groups, seed=1, version=step)


def model(title: str = TIED, dtype: torch.dtype = torch.float64, *, seed: int = 0) -> PackedModel:
    """A tiny model, other weights for another seed. It normalises in its own precision, families do in float32."""
    register()
    lm = tiny(title, dtype)
    lm.set_attn_implementation(ATTENTION)
    for parent in list(lm.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, nn.RMSNorm(child.weight.shape, child.variance_epsilon, dtype=dtype))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter += 0.01 * seed * torch.randn(parameter.shape, generator=generator).to(dtype)
    return PackedModel(lm)


def valued(made: PackedModel) -> PackedModel:
    """With a value head that says something, in the model's precision: one precision is what gradients are summed in."""
    made.add_value_head()
    made.value_head.to(made.lm.dtype)  # type: ignore[union-attr]
    with torch.no_grad():
        made.value_head.weight += 0.1  # type: ignore[union-attr]
    return made


def algorithm(name: str, **changes: Any) -> Algorithm:
    """As its preset says, with n_samples and lengths of `rollout`; a running norm as its controller would put it in place."""
    made = compose(replace(keys_of(name), **changes), n_samples=3, max_new_tokens=8)
    if made.norm is not None and made.norm.running:
        made = replace(made, norm=replace(made.norm, center=EmaCenter(0.4), scale=EmaScale(0.2)))
    return made


def learner(policy: PackedModel, ranks: Ranks, *, lr: float = 0.05, eps: float = 1.0, **keys: Any) -> Learner:
    """A large eps keeps AdamW near plain descent: no rounding of a gradient near zero becomes a whole step."""
    beside = {name: keys.pop(name) for name in ("reference", "vf_coef") if name in keys}
    optimizer = OptimizerConfig(lr=lr, eps=eps, gradient_clipping=keys.pop("gradient_clipping", None))
    config = ActorConfig(
        optimizer=optimizer, mb_spec=MicroBatchConfig(max_tokens_per_mb=keys.pop("budget", 24)), **keys
    )
    return Learner(policy, config, torch.float32, 0.8, total_steps=10, seed=1, ranks=ranks, **beside)


class Watched:
    """The gradients of every optimizer step that is taken, whole."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.steps: list[list[torch.Tensor | None]] = []
        optimizer.register_step_pre_hook(lambda *_: self.steps.append(self._now(optimizer)))

    def _now(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor | None]:
        parameters = optimizer.param_groups[0]["params"]
        return [None if p.grad is None else full(p.grad).detach().clone() for p in parameters]


def weights(of: PackedModel) -> list[torch.Tensor]:
    """Whole, on every rank."""
    settle(of)
    return [full(p.detach()).clone() for p in of.parameters()]


def told(metrics: Any) -> dict[str, float]:
    """Numbers of a step that do not depend on the clock."""
    return {name: value for name, value in metrics.as_dict().items() if not name.startswith("time/")}


def preset(name: str, ranks: Ranks) -> Found:
    """Two epochs of two minibatches, with everything that the preset reads: the policy of before, reference, critic."""
    algo, title = algorithm(name), UNTIED if len(name) % 2 else TIED
    reference = shard(model(title, seed=3).requires_grad_(False), ranks) if algo.needs & REFERENCE else None
    who = learner(
        shard(model(title), ranks), ranks, reference=reference, ppo_epochs=2, ppo_n_minibatches=2,
        skip_dead_samples=len(name) % 3 > 0,
    )  # fmt: skip
    watched, batch, found = Watched(who.stepper.optimizer), who.score(rollout(), algo), Found()
    if algo.value is not None:
        config = CriticConfig(optimizer=who.config.optimizer, mb_spec=MicroBatchConfig(24))
        critic = Critic(shard(valued(model(title, seed=2)), ranks), config, torch.float32, 10, 1, 3, ranks=ranks)
        of_critic, batch = Watched(critic.stepper.optimizer), critic.score(batch)
        found["values"] = (batch.batch.values_T, batch.batch.bootstrap_value_S)
    batch = batch.with_batch(algo.credit(batch.batch))
    if algo.value is not None:
        found["critic metrics"] = told(critic.learn(batch, algo, 0, 2, 2))
        found["critic gradients"] = of_critic.steps
    metrics, record = who.learn(batch, algo, 0)
    found |= {"gradients": watched.steps, "metrics": told(metrics), "weights": weights(who.model)}
    found["outcomes"] = [(step.samples, step.outcome, step.left_out) for step in record.steps]
    found["streams"] = [step.current.logprobs_T for step in record.steps if step.current is not None]
    return found


REFERENCE = {"ref", "kl_full_ref", "kl_full_score"}


def one_step(who: Learner, algo: Algorithm, batch: RolloutBatch | None = None) -> Found:
    """Gradients, metrics and weights of one train step."""
    watched, batch = Watched(who.stepper.optimizer), who.score(batch or rollout(), algo)
    metrics, _ = who.learn(batch.with_batch(algo.credit(batch.batch)), algo, 0)
    return {"gradients": watched.steps, "metrics": told(metrics), "weights": weights(who.model)}


def divergences(ranks: Ranks) -> Found:
    """The whole vocabulary of reference and of the policy of before, with an untied head, in two optimizer steps."""
    algo = algorithm(
        "ppo_penalty", kl_penalty_estimator="full", kl_loss_coef=0.1, kl_loss_estimator="full", credit="outcome"
    )
    reference = shard(model(UNTIED, seed=3).requires_grad_(False), ranks)
    return one_step(learner(shard(model(UNTIED), ranks), ranks, reference=reference, ppo_epochs=2), algo)


def few_samples(ranks: Ranks) -> Found:
    """Two samples that teach: on four ranks two have nothing to compute."""
    algo, batch = algorithm("drgrpo"), rollout()
    return one_step(learner(shard(model(), ranks), ranks, gradient_clipping=0.01), algo, batch.select([1, 2]))


def adapters(ranks: Ranks, **spec: bool) -> Found:
    """Adapters, the frozen weights as reference, and the critic's value head on the policy."""
    algo = algorithm("ppo", kl_ctl=0.0, kl_loss_coef=0.1, kl_loss_estimator="full")
    policy = valued(model())
    add_adapters(policy, LoraConfig(rank=4), seed=5)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter += 0.02
    reference = shard(base_view(policy).requires_grad_(False), ranks)
    shard(policy, ranks, ShardConfig(**spec))
    who = learner(policy, ranks, reference=reference, vf_coef=0.5, ppo_epochs=2)
    config = CriticConfig(optimizer=who.config.optimizer, mb_spec=MicroBatchConfig(24), shared=True)
    critic = Critic(policy, config, torch.float32, 10, 1, 3, ranks=ranks)
    return one_step(who, algo, critic.score(rollout()))


def recomputed(ranks: Ranks) -> Found:
    """Activations are computed again in the backward pass, with adapters or without."""
    policy = model()
    policy.lm.activation_checkpointing_enable()
    return one_step(learner(shard(policy.train(), ranks), ranks, ppo_epochs=2), algorithm("grpo", kl_loss_coef=0.0))


def offloaded(ranks: Ranks) -> Found:
    """Parts wait in main memory."""
    policy = shard(model(), ranks, ShardConfig(offload=True, reshard_after_forward=False))
    return one_step(learner(policy, ranks, ppo_epochs=2, gradient_clipping=0.01), algorithm("dapo"))


def plain(ranks: Ranks) -> Found:
    """A family that runs rows of one length at a time: its layers run more often on one rank than on another."""
    lm = model().lm
    lm.set_attn_implementation("eager")
    policy = PackedModel(lm, kind="plain", padded=False, known_head=False)
    return one_step(learner(shard(policy, ranks), ranks, ppo_epochs=2), algorithm("drgrpo"))


def experts(ranks: Ranks) -> Found:
    """Experts that one rank's tokens reach and another's do not."""
    return one_step(learner(shard(model("Qwen3-MoE"), ranks), ranks), algorithm("drgrpo"))


def five_steps(ranks: Ranks) -> Found:
    """In float32, with AdamW as it is used, clipped."""
    who = learner(shard(model(dtype=torch.float32), ranks), ranks, lr=1e-3, eps=1e-8, gradient_clipping=0.5)
    algo, seen = algorithm("drgrpo"), list[dict[str, float]]()
    for step in range(5):
        batch = who.score(rollout(step), algo)
        seen.append(told(who.learn(batch.with_batch(algo.credit(batch.batch)), algo, step)[0]))
    return {"weights": weights(who.model), "metrics": seen}


def narrow(ranks: Ranks, *, gathered: torch.dtype = torch.bfloat16, again: bool = False) -> Found:
    """Under autocast, with what the graph keeps of a forward pass, in bytes. gathered: as what. again: activations are computed
    in the backward pass.
    """
    policy = model(dtype=torch.float32, seed=1)
    if again:
        policy.lm.activation_checkpointing_enable()
    who = learner(shard(policy.train(again), ranks, dtype=gathered), ranks, ppo_epochs=2)
    who.stepper.compute_dtype = torch.bfloat16
    found, kept = one_step(who, algorithm("drgrpo")), list[torch.UntypedStorage]()
    with who.stepper.precision(), torch.autograd.graph.saved_tensors_hooks(partial(_seen, kept), _same):
        policy(pack([rollout().rows[0]], [0]), temperature=1.0)
    settle(policy)
    return found | {"kept": sum({one.data_ptr(): one.nbytes() for one in kept}.values())}


def _seen(kept: list[torch.UntypedStorage], tensor: torch.Tensor) -> torch.Tensor:
    kept.append(tensor.untyped_storage())  # of gathered weights nothing is left in it after their layer
    return tensor


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def skipped(ranks: Ranks) -> Found:
    """One sample's loss is not finite: nobody steps; and a batch without it: everybody does."""
    policy = model(UNTIED)
    with torch.no_grad():
        policy.lm.get_input_embeddings().weight[POISON] = torch.inf
    who, algo = learner(shard(policy, ranks), ranks), algorithm("drgrpo")
    prompt, outcomes = [1, 2, 3], list[Any]()
    for last in (POISON, 91, POISON):
        samples = [sample(prompt, [40, 50, last, 60], 1.0), sample(prompt, [41, 7], 0.0), sample(prompt, [5, 9], 0.0)]
        batch = collate([Group(0, Prompt("p", tuple(prompt), "", {}), samples)], seed=1, version=0)
        batch = batch.with_batch(algo.credit(batch.batch))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            metrics, record = who.learn(batch, algo, 0)
        outcomes.append((record.steps[0].outcome, who.stepper.skipped_in_a_row, sorted(told(metrics))))
    return {"outcomes": outcomes, "weights": weights(who.model)}


JOBS = {
    "divergences": divergences, "few samples": few_samples, "adapters": adapters, "recomputed": recomputed,
    "offloaded": offloaded, "plain": plain, "experts": experts, "five steps": five_steps, "narrow": narrow,
    "narrow, gathered wide": partial(narrow, gathered=torch.float32), "narrow, again": partial(narrow, again=True),
    "skipped": skipped,
}  # fmt: skip


def all_found(ranks: Ranks) -> dict[str, Found]:
    """Of every preset and every job."""
    found = {name: preset(name, ranks) for name in PRESETS}
    return found | {name: job(ranks) for name, job in JOBS.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    joined = join_ranks()
    torch.save(all_found(joined), Path(sys.argv[1]) / f"{joined.rank}.pt")
    leave_ranks()
