"""Compositions without a name: between them every part is in at least one."""

from dataclasses import replace

from partita.algo.keys import (
    AdaptiveEntropyConfig,
    AlgorithmKeys,
    BalanceConfig,
    CorrectionConfig,
    EmaConfig,
    KlControllerConfig,
    NormConfig,
)  # fmt: skip
from partita.algo.presets import keys_of

GROUP = NormConfig(mean_level="group", std_level="group")
EMA = NormConfig(mean_level="ema", std_level="ema", ema=EmaConfig(order="use_then_update", init="bias_corrected"))

COMBINED: dict[str, AlgorithmKeys] = {
    "much shaping": AlgorithmKeys(
        reward_norm=NormConfig(mean_level="batch", std_level="group"), adv_norm=NormConfig(eps_mode="inside_sqrt"),
        overlong_reward_penalty=True, reward_bias=0.1, reward_scaling=2.0, reward_clip=1.5, kl_ctl=0.1, discount=0.9,
        credit="reward_to_go", truncation="adv_mask_before", c_clip=3.0, loss_agg_mode="prompt_token_mean",
        kl_loss_coef=0.1, kl_loss_estimator="k3_value_k2_grad", entropy_coef=0.01,
    ),
    "dapo by sequence, truncated weights": replace(
        keys_of("dapo"), importance_sampling_level="sequence", correction=CorrectionConfig("tis", level="sequence")
    ),
    "sapo with a token mean and a full KL": replace(
        keys_of("sapo"), loss_agg_mode="token_mean", kl_loss_coef=0.1, kl_loss_estimator="full",
        kl_loss_importance_corrected=True, correction=CorrectionConfig("icepop", denominator="kept"),
        kl_controller=KlControllerConfig("ziegler"),
    ),
    "ppo, bootstrapped, per token of a sequence": replace(
        keys_of("ppo"), bootstrap_truncated=True, importance_sampling_level="sequence_token", truncation="mask_loss",
        count_empty_rows=False, loss_agg_mode="seq_mean_token_sum", use_decoupled_loss=True,
    ),
    "ppo's full penalty by sequence": replace(
        keys_of("ppo_penalty"), kl_penalty_estimator="full", importance_sampling_level="sequence",
        adaptive_entropy=AdaptiveEntropyConfig(target=5.0, start=0.1),
    ),
    "masked sequences, balanced by lot": AlgorithmKeys(
        adv_norm=GROUP, balance=BalanceConfig("downsample", 0.4), loss_agg_mode="seq_mean_token_mean",
        correction=CorrectionConfig("mis", low=0.9, high=1.1, denominator="kept"), max_staleness=1,
    ),
    "second moments, balanced by weight": AlgorithmKeys(
        adv_norm=GROUP, balance=BalanceConfig("reweight", 0.3), correction=CorrectionConfig("m2po", threshold=1e-3),
        use_decoupled_loss=True, truncation="adv_mask_after",
    ),
    "coupled, drifted sequences dropped": AlgorithmKeys(
        adv_norm=GROUP, recompute_logprob=False, correction=CorrectionConfig("opsm", threshold=0.05),
        importance_sampling_level="sequence_product",
    ),
    "interpolated centre": AlgorithmKeys(
        adv_norm=GROUP, prox_logp_method="loglinear", correction=CorrectionConfig("decoupled", high=1.1, action="mask"),
    ),
    "steps": AlgorithmKeys(credit="process", adv_norm=GROUP),
    "each reward by itself": AlgorithmKeys(reward_norm=GROUP, reward_norm_per_part=True),
    "running rewards, no ratio": AlgorithmKeys(reward_norm=EMA, importance_sampling_level="none", kl_ctl=0.1),
    "cispo, unclipped sides": replace(keys_of("decoupled_clip"), gate="open", adv_norm=replace(GROUP, singleton="raw")),
}  # fmt: skip
