"""verl's own functions on padded rows: what each returns, as the tests compare it.

Shapes: B rows, W padded width.
Left out: verl's workers. They need a cluster; everything that is mathematics there is in the functions called here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from parity.outcome import Outcome, differentiate
from parity.ragged import Ragged
from torch import Tensor
from verl.protocol import DataProto
from verl.trainer.config import AlgoConfig, RolloutCorrectionConfig
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig, PolicyLossConfig

Setting = Mapping[str, Any]


def chosen(config: type[Any], setting: Setting) -> dict[str, Any]:
    """The part of a setting that belongs to one of verl's configuration classes."""
    return {key: value for key, value in setting.items() if key in config.__dataclass_fields__}


def correction(setting: Setting) -> RolloutCorrectionConfig:
    """What is said about the sampler; no weights unless they are asked for."""
    return RolloutCorrectionConfig(**{"rollout_is": None, **chosen(RolloutCorrectionConfig, setting)})


def corrected(ragged: Ragged, setting: Setting) -> tuple[Tensor, Tensor | None]:
    """The response mask after rejection and the behaviour weights, as verl's trainer puts them into its batch."""
    mask_BW = ragged.mask_BW.float()
    if "rollout_is" not in setting and "rollout_rs" not in setting:
        return mask_BW, None
    streams = {"old_log_probs": ragged.old_BW, "rollout_log_probs": ragged.behaviour_BW, "response_mask": mask_BW}
    config = correction(setting)
    batch, _ = rollout_corr_helper.compute_rollout_correction_and_add_to_batch(DataProto.from_dict(streams), config)
    return batch.batch["response_mask"], batch.batch.get("rollout_is_weights", None)


def actor(setting: Setting) -> ActorConfig:
    """An actor's configuration; keys of its policy loss and of the correction may stand beside its own."""
    loss = PolicyLossConfig(**chosen(PolicyLossConfig, setting), rollout_correction=correction(setting))
    own = chosen(ActorConfig, setting)
    return ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, policy_loss=loss, **own)


def whole_step(config: ActorConfig, mask_BW: Tensor) -> dict[str, Any]:
    """What verl's trainer tells every micro-batch about the step."""
    return {
        "dp_size": 1,
        "batch_num_tokens": mask_BW.sum(),
        "global_batch_size": mask_BW.shape[0],
        "loss_scale_factor": config.loss_scale_factor,
    }


def policy_loss(ragged: Ragged, setting: Setting) -> Outcome:
    """A registered policy loss with the actor's KL loss, under the step's denominators; its gradient to the log-probs."""
    config, mode = actor(setting), setting["loss_mode"]
    bypass = mode == "bypass_mode"  # there the loss corrects by itself
    old_BW = ragged.behaviour_BW if bypass else ragged.old_BW
    mask_BW, weights_BW = (ragged.mask_BW.float(), None) if bypass else corrected(ragged, setting)
    if not setting.get("alone"):
        config.global_batch_info.update(whole_step(config, mask_BW))

    def loss(logprobs_BW: Tensor) -> Tensor:
        value, _ = core_algos.get_policy_loss_fn(mode)(
            old_log_prob=old_BW, log_prob=logprobs_BW, advantages=ragged.advantages_BW, response_mask=mask_BW,
            loss_agg_mode=config.loss_agg_mode, config=config, rollout_is_weights=weights_BW,
        )  # fmt: skip
        if config.use_kl_loss:
            kl_BW = core_algos.kl_penalty(logprobs_BW, ragged.ref_BW, config.kl_loss_type)
            held = core_algos.agg_loss(kl_BW, mask_BW, config.loss_agg_mode, **config.global_batch_info)
            value = value + config.kl_loss_coef * held
        return value

    return differentiate(loss, ragged.logprobs_BW)


def aggregation(ragged: Ragged, setting: Setting) -> Outcome:
    """`agg_loss` of the values, called alone or with the denominators of the step."""
    mask_BW = ragged.mask_BW.float()
    config = actor(setting)
    extra = {"loss_scale_factor": config.loss_scale_factor} if setting.get("alone") else whole_step(config, mask_BW)
    return differentiate(
        lambda value_BW: core_algos.agg_loss(value_BW, mask_BW, config.loss_agg_mode, **extra), ragged.values_BW
    )


def token_rewards(ragged: Ragged, kl_ratio: float) -> Tensor:
    """The outcome on the last trained token of each row, minus verl's KL in the reward."""
    mask_BW = ragged.mask_BW.float()
    last_BW = (mask_BW.flip(-1).cumsum(-1).flip(-1) == 1) & ragged.mask_BW
    score_BW = last_BW * ragged.reward_B[:, None]
    return core_algos.compute_rewards(score_BW, ragged.old_BW * mask_BW, ragged.ref_BW * mask_BW, kl_ratio)


def estimate(ragged: Ragged, setting: Setting) -> tuple[Tensor, Tensor]:
    """A registered advantage estimator: advantages and returns."""
    mask_BW = ragged.mask_BW.float()
    reward_BW = token_rewards(ragged, setting.get("kl_ratio", 0.0))
    name = setting["adv_estimator"]
    call = core_algos.get_adv_estimator_fn(name)
    if name == "gae":
        return call(reward_BW, ragged.old_values_BW, mask_BW, setting["gamma"], setting["lam"])
    if name == "reinforce_plus_plus":
        return call(reward_BW, mask_BW, config=AlgoConfig(gamma=setting["gamma"]))
    index = np.array([f"prompt {group}" for group in ragged.group_B.tolist()])
    more = {key: setting[key] for key in ("epsilon", "norm_adv_by_std_in_grpo") if key in setting}
    if name == "gdpo":
        return gdpo(ragged, index, **more)
    return call(reward_BW, mask_BW, index=index, **more)


def gdpo(ragged: Ragged, index: np.ndarray, **more: Any) -> tuple[Tensor, Tensor]:
    """Several rewards, each normalised in its group. verl finds them by name in the batch, behind a prompt of one token."""
    response_BW = torch.ones(ragged.mask_BW.shape, dtype=torch.long)  # a reward is placed on the last attended token
    names = [f"part {number}" for number in range(ragged.parts_BR.shape[1])]
    return core_algos.compute_gdpo_outcome_advantage(
        torch.zeros(ragged.mask_BW.shape), ragged.mask_BW.float(), index=index,
        config=AlgoConfig(gdpo_reward_keys=names),
        non_tensor_batch=dict(zip(names, ragged.parts_BR.T.numpy(), strict=True)),
        batch={"prompts": torch.zeros(ragged.rows, 1), "attention_mask": torch.cat([response_BW[:, :1], response_BW], 1)},
        **more,
    )  # fmt: skip


def advantages(ragged: Ragged, setting: Setting) -> Outcome:
    """Advantages of an estimator on the trained tokens."""
    return Outcome(estimate(ragged, setting)[0] * ragged.mask_BW)


def returns(ragged: Ragged, setting: Setting) -> Outcome:
    """Returns of an estimator on the trained tokens."""
    return Outcome(estimate(ragged, setting)[1] * ragged.mask_BW)


def kl(ragged: Ragged, setting: Setting) -> Outcome:
    """`kl_penalty` of each token against the reference, and its gradient."""
    return differentiate(
        lambda logprobs_BW: core_algos.kl_penalty(logprobs_BW, ragged.ref_BW, setting["kl_penalty"]) * ragged.mask_BW,
        ragged.logprobs_BW,
    )


def behaviour_weights(ragged: Ragged, setting: Setting) -> Outcome:
    """The factor of each token: its weight, 0 where rejection masks it."""
    mask_BW, weights_BW = corrected(ragged, setting)
    return Outcome(mask_BW if weights_BW is None else mask_BW * weights_BW)


def value_loss(ragged: Ragged, setting: Setting) -> Outcome:
    """The critic's loss under the denominators of the step, and its gradient to the values."""
    mask_BW = ragged.mask_BW.float()
    config = actor(setting)

    def loss(values_BW: Tensor) -> Tensor:
        return core_algos.compute_value_loss(
            values_BW, ragged.returns_BW, ragged.old_values_BW, mask_BW, setting["cliprange_value"],
            config.loss_agg_mode, **whole_step(config, mask_BW),
        )[0]  # fmt: skip

    return differentiate(loss, ragged.values_BW)


def entropy_bonus(ragged: Ragged, setting: Setting) -> Outcome:
    """Minus the coefficient times the aggregated entropy, as the actor adds it; gradient to the entropy."""
    mask_BW = ragged.mask_BW.float()
    config = actor(setting)

    def loss(entropy_BW: Tensor) -> Tensor:
        held = core_algos.agg_loss(entropy_BW, mask_BW, config.loss_agg_mode, **whole_step(config, mask_BW))
        return -config.entropy_coeff * held

    return differentiate(loss, ragged.values_BW.abs())


def kl_coefficient(ragged: Ragged, setting: Setting) -> Outcome:
    """The coefficient after each of a few divergences."""
    controller = core_algos.AdaptiveKLController(setting["kl_coef"], setting["target_kl"], setting["horizon"])
    seen: list[float] = []
    for divergence in setting["observed"]:
        controller.update(divergence, n_steps=setting["n_steps"])
        seen.append(controller.value)
    return Outcome(torch.tensor(seen))


CALLS: dict[str, Callable[[Ragged, Setting], Outcome]] = {
    "policy_loss": policy_loss,
    "agg_loss": aggregation,
    "advantages": advantages,
    "returns": returns,
    "kl_penalty": kl,
    "rollout_correction": behaviour_weights,
    "value_loss": value_loss,
    "entropy_bonus": entropy_bonus,
    "kl_coefficient": kl_coefficient,
}
