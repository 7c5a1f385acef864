"""Config sections of what learns: `actor` (with the algorithm's keys, or without), `ref`, `critic`, and the optimizer.

Left out: what the algorithm keys mean. `algo.keys` declares them; `actor` only carries them beside the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from partita.algo.keys import AlgorithmKeys
from partita.config.schema import key, key_factory
from partita.models.adapters import LoraConfig
from partita.models.parallel import ShardConfig

Precision = Literal["auto", "bfloat16", "float32"]


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019, Algorithm 2) with fp32 master weights and a schedule over train steps."""

    type: Literal["adamw"] = key("adamw", "the optimizer")
    lr: float = key(1e-6, "peak learning rate", ge=0)
    weight_decay: float = key(0.0, "decoupled weight decay", ge=0)
    beta1: float = key(0.9, "decay of the first moment", ge=0, lt=1)
    beta2: float = key(0.95, "decay of the second moment", ge=0, lt=1)
    eps: float = key(1e-8, "added to the root of the second moment", gt=0)
    gradient_clipping: float | None = key(1.0, "largest global gradient norm; null leaves gradients alone", gt=0)
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = key("constant", "shape of the decay after the warm-up")
    warmup_steps: int = key(0, "train steps over which the rate rises linearly from 0", ge=0)
    min_lr_ratio: float = key(0.0, "the decay ends at this share of lr", ge=0, le=1)

    def rate(self, step: int, total_steps: int) -> float:
        """Learning rate of train step `step` (counted from 0); the last step of `total_steps` still learns."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.lr_scheduler_type == "constant":
            return self.lr
        done = (step - self.warmup_steps) / max(total_steps - self.warmup_steps, 1)
        shape = (
            1 - done
            if self.lr_scheduler_type == "linear"
            else (1 + torch.cos(torch.tensor(done * torch.pi)).item()) / 2
        )
        return self.lr * (self.min_lr_ratio + (1 - self.min_lr_ratio) * shape)


@dataclass(frozen=True)
class MicroBatchConfig:
    """How much model input one forward and backward may hold."""

    max_tokens_per_mb: int = key(
        4096, "most model-input tokens per micro-batch, which its memory grows with; shared prefixes counted once", gt=0
    )


@dataclass(frozen=True)
class ActorConfig(AlgorithmKeys):
    """The trained policy: its model, its optimizer and its algorithm."""

    path: str = key("smollm2-135m", "a Hugging Face name or folder, or the embedded smollm2-135m")
    dtype: Precision = key(
        "auto",
        "precision of the forward pass; master weights are always float32. auto: bfloat16 where the machine multiplies it fast",
    )
    trust_remote_code: bool = key(False, "run Python code that comes with the model: only for sources you trust")
    gradient_checkpointing: bool = key(False, "recompute activations in the backward pass: less memory, more time")
    optimizer: OptimizerConfig = key_factory(OptimizerConfig, "the optimizer")
    lora: LoraConfig | None = key(
        None, "train low-rank adapters on frozen weights instead of all weights; needs partita[lora]"
    )
    fsdp: ShardConfig = key_factory(ShardConfig, "how weights lie on several learner ranks")
    mb_spec: MicroBatchConfig = key_factory(MicroBatchConfig, "micro-batches")
    ppo_n_minibatches: int = key(1, "optimizer steps per pass over a rollout batch", ge=1)
    ppo_epochs: int = key(1, "passes over a rollout batch", ge=1)
    minibatch_split: Literal["groups", "spread"] = key(
        "groups",
        "groups keeps the samples of a prompt in one minibatch and shares their prefix; spread shuffles samples freely",
    )
    skip_dead_samples: bool = key(
        True,
        "samples that add nothing to the gradient do not pass through the model; metrics of the loss are then over the others. "
        "false: all pass through it, also where nothing of a step moves and it is not taken",
    )
    max_nonfinite_steps: int = key(
        3, "skipped optimizer steps in a row (loss or gradient not finite) that end the run", ge=1
    )
    max_new_tokens: int | None = key(
        None, "accepted for familiar configs; when given it must equal gconfig.max_new_tokens", gt=0
    )


@dataclass(frozen=True)
class LearnedModelConfig:
    """The model that `partita sft`, `rm` and `dpo` train, and its optimizer."""

    path: str = key("smollm2-135m", "a Hugging Face name or folder, or the embedded smollm2-135m")
    dtype: Precision = key(
        "auto",
        "precision of the forward pass; master weights are always float32. auto: bfloat16 where the machine is fast",
    )
    trust_remote_code: bool = key(False, "run Python code that comes with the model: only for sources you trust")
    gradient_checkpointing: bool = key(False, "recompute activations in the backward pass: less memory, more time")
    optimizer: OptimizerConfig = key_factory(lambda: OptimizerConfig(lr=1e-5), "the optimizer")
    fsdp: ShardConfig = key_factory(ShardConfig, "how weights lie on several learner ranks")
    mb_spec: MicroBatchConfig = key_factory(MicroBatchConfig, "micro-batches")
    lora: LoraConfig | None = key(None, "train adapters instead of the weights; needs partita[lora]")
    max_nonfinite_steps: int = key(3, "skipped steps in a row (loss or gradient not finite) that end the run", ge=1)


@dataclass(frozen=True)
class RefConfig:
    """The frozen reference policy of the KL terms; loaded only when a coefficient is not zero."""

    path: str | None = key(None, "its model; null is the starting policy")
    dtype: Precision = key(
        "auto", "precision of its weights and forward pass; without effect where it is the policy without adapters"
    )
    refresh_steps: int | None = key(
        None,
        "train steps after which the policy of then becomes the reference, again and again (iterative GRPO, DeepSeekMath, arXiv "
        "2402.03300, algorithm 1); null: it stays the same",
        ge=1,
    )
    offload: bool = key(
        False, "on a GPU: its weights wait in main memory and are fetched for each use; on a CPU they are there already"
    )


@dataclass(frozen=True)
class CriticConfig:
    """The critic of `actor.credit: gae`: a model that predicts what is still to be won from each token on."""

    path: str | None = key(None, "its model, a causal language model or a reward model; null is the starting policy")
    dtype: Precision = key("auto", "precision of its forward pass; master weights are float32")
    gradient_checkpointing: bool = key(False, "recompute activations in the backward pass: less memory, more time")
    optimizer: OptimizerConfig = key_factory(lambda: OptimizerConfig(lr=1e-5), "its optimizer")
    lora: LoraConfig | None = key(
        None, "train low-rank adapters on frozen weights instead of all weights; needs partita[lora]"
    )
    fsdp: ShardConfig = key_factory(ShardConfig, "how its weights lie on several learner ranks")
    mb_spec: MicroBatchConfig = key_factory(MicroBatchConfig, "its micro-batches")
    ppo_n_minibatches: int | None = key(None, "optimizer steps per pass over a rollout batch; null: as the actor", ge=1)
    ppo_epochs: int | None = key(None, "passes over a rollout batch; null: as the actor", ge=1)
    minibatch_split: Literal["groups", "spread"] = key("groups", "as actor.minibatch_split")
    warmup_steps: int = key(0, "train steps at the start in which only the critic learns", ge=0)
    shared: bool = key(False, "no model of its own: a value head on the policy, learned in the policy's backward pass")
    vf_coef: float = key(0.1, "shared: weight of the value loss beside the policy's", gt=0)

    def __post_init__(self) -> None:
        if self.shared and self.path is not None:
            raise ValueError(f"shared=true has no model of its own, but path={self.path}: drop one of the two")
        if self.shared and self.lora is not None:
            raise ValueError(
                "shared=true has no weights of its own to adapt: drop critic.lora, actor.lora adapts the policy's"
            )
        if self.shared and self.warmup_steps > 0:
            raise ValueError(
                f"shared=true with warmup_steps={self.warmup_steps}: steps of the value loss alone would move the policy too; "
                "take a critic of its own, or warmup_steps=0"
            )
