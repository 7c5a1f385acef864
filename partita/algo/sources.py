"""Where each preset was published, what it maximises in the paper's own symbols, and the values that the paper gives.

Left out: our values. `explain` fills the composed parts' formulas, and a test holds the presets against `values` here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperValue:
    """A setting as published: the config key that means it, its value, and where it stands.

    differs: the preset has another value on purpose; the algorithm's page says why.
    """

    key: str
    value: float | str | None
    where: str
    differs: bool = False


@dataclass(frozen=True)
class Source:
    """A publication. `url` and `year` are empty for a text without a stable address, `section` names its part."""

    title: str
    url: str
    year: int | None
    section: str
    formula: tuple[str, ...]
    values: tuple[PaperValue, ...] = ()


GROUP_SCORE = "A_i = (r_i - mean(r)) / std(r), over the G samples of a prompt"
DEEPSEEKMATH = "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models"
AREAL_URL = "https://inclusionai.github.io/AReaL/"
AREAL_PAGE = "AReaL documentation, PPO, GRPO and related algorithms (AReaL: arXiv 2505.24298)"
ARTICLE = "从PPO到SAPO：大语言模型策略优化算法推导与实战"


def _areal(formula: tuple[str, ...], mean: str, std: str | None, **special: float | str) -> Source:
    """One row of the matrix; `special` are further keys of `actor`."""
    row = {"adv_norm.mean_level": mean, "adv_norm.std_level": std, **special}
    values = tuple(PaperValue(f"actor.{key}", value, "matrix") for key, value in row.items())
    return Source(AREAL_PAGE, AREAL_URL, 2025, "algorithm configuration matrix", formula, values)


AREAL_CLIPPED = "J = 1/Σ_i|o_i| Σ_i Σ_t w_it min(u_it A_it, clip(u_it, 1-ε, 1+ε) A_it), u = π/π_prox, w = π_prox/μ"
BATCH_SCORE = "A_i = (r_i - mean(batch)) / std(batch)"

SOURCES: dict[str, Source] = {
    "reinforce": Source(
        "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning (REINFORCE)",
        "https://doi.org/10.1007/BF00992696",
        1992,
        "section 5",
        ("∇J = E[(r - b) Σ_t ∇ log π(o_t)]", "b any baseline that does not depend on the sample"),
    ),
    "rft": Source(
        f"{DEEPSEEKMATH} (RFT)",
        "https://arxiv.org/abs/2402.03300",
        2024,
        "section 5.2.1; appendix A.1.2",
        ("∇J = E[1/|o| Σ_t 1[o is right] ∇ log π(o_t)], o from the SFT model",),
    ),
    "online_rft": Source(
        f"{DEEPSEEKMATH} (Online RFT)",
        "https://arxiv.org/abs/2402.03300",
        2024,
        "section 5.2.1; appendix A.1.3",
        ("∇J = E[1/|o| Σ_t 1[o is right] ∇ log π(o_t)], o from the policy of now",),
    ),
    "ppo": Source(
        "Proximal Policy Optimization Algorithms (PPO-Clip)",
        "https://arxiv.org/abs/1707.06347",
        2017,
        "section 3, equation 7; advantages: equations 11 and 12",
        (
            "J = E_t[min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t)], ρ_t = π(o_t)/π_old(o_t)",
            "A_t = δ_t + γλ δ_(t+1) + ..., δ_t = r_t + γ V(s_(t+1)) - V(s_t)",
        ),
        (
            PaperValue("actor.eps_clip", 0.2, "table 3"),
            PaperValue("actor.gae_lambda", 0.95, "table 3"),
            PaperValue("actor.discount", 0.99, "table 3", differs=True),
        ),
    ),
    "ppo_penalty": Source(
        "Proximal Policy Optimization Algorithms (PPO with adaptive KL penalty)",
        "https://arxiv.org/abs/1707.06347",
        2017,
        "section 4, equation 8",
        (
            "J = E_t[ρ_t A_t - β KL(π_old(·|s_t) ‖ π(·|s_t))]",
            "d < d_targ/1.5: β ← β/2;  d > 1.5 d_targ: β ← 2β",
        ),
        (PaperValue("actor.kl_controller.target", 0.01, "table 1"),),
    ),
    "grpo": Source(
        f"{DEEPSEEKMATH} (GRPO)",
        "https://arxiv.org/abs/2402.03300",
        2024,
        "section 4.1, equations 3 and 4",
        (
            "J = 1/G Σ_i 1/|o_i| Σ_t [ min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i) - β (π_ref/π - log(π_ref/π) - 1) ]",
            GROUP_SCORE,
        ),
        (
            PaperValue("actor.kl_loss_coef", 0.04, "section 4.2"),
            PaperValue("gconfig.n_samples", 64, "section 4.2"),
            PaperValue("gconfig.max_new_tokens", 1024, "section 4.2"),
            PaperValue("actor.optimizer.lr", 1e-6, "section 4.2"),
            PaperValue("actor.ppo_epochs", 1, "section 4.2"),
        ),
    ),
    "drgrpo": Source(
        "Understanding R1-Zero-Like Training: A Critical Perspective (Dr.GRPO)",
        "https://arxiv.org/abs/2503.20783",
        2025,
        "section 3.2",
        (
            "J = 1/(G·C) Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i), C the generation budget",
            "A_i = r_i - mean(r)",
        ),
        (
            PaperValue("actor.eps_clip", 0.2, "authors' scripts"),
            PaperValue("actor.kl_loss_coef", 0.0, "authors' scripts"),
            PaperValue("gconfig.n_samples", 8, "authors' scripts"),
            PaperValue("gconfig.max_new_tokens", 3000, "authors' scripts"),
            PaperValue("actor.optimizer.lr", 1e-6, "authors' scripts"),
            PaperValue("actor.ppo_epochs", 1, "authors' scripts"),
        ),
    ),
    "liteppo": Source(
        "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning (Lite PPO)",
        "https://arxiv.org/abs/2508.08221",
        2025,
        "Lite PPO; settings: appendix A.1",
        (
            "J = 1/Σ_i|o_i| Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i)",
            "A_i = (r_i - mean(group)) / std(batch)",
        ),
        (
            PaperValue("actor.kl_ctl", 0.0, "appendix A.1"),
            PaperValue("gconfig.n_samples", 8, "appendix A.1"),
            PaperValue("actor.optimizer.lr", 1e-6, "appendix A.1"),
            PaperValue("actor.ppo_epochs", 1, "appendix A.1"),
        ),
    ),
    "rloo": Source(
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs (RLOO)",
        "https://arxiv.org/abs/2402.14740",
        2024,
        "REINFORCE Leave-One-Out",
        (
            "∇J = 1/G Σ_i A_i Σ_t ∇ log π(o_it)",
            "A_i = R_i - 1/(G-1) Σ_(j≠i) R_j, with R_i = r_i - β Σ_t log(π/π_ref)",
        ),
        (PaperValue("actor.kl_ctl", 0.03, "TRL's paper index"),),
    ),
    "dapo": Source(
        "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
        "https://arxiv.org/abs/2503.14476",
        2025,
        "section 3; length penalty: equation 13",
        (
            "J = 1/Σ_i |o_i| Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 1-ε_low, 1+ε_high) A_i), on groups with 0 < #right < G",
            "A_i = (r_i - mean(r)) / std(r), r_i the task's reward plus the soft overlong penalty",
        ),
        (
            PaperValue("actor.eps_clip", 0.2, "section 4.1"),
            PaperValue("actor.eps_clip_higher", 0.28, "section 4.1"),
            PaperValue("actor.overlong_penalty_factor", 1.0, "equation 13", differs=True),
            PaperValue("actor.overlong_tokens", 4096, "section 4.1", differs=True),
            PaperValue("gconfig.n_samples", 16, "section 4.1"),
            PaperValue("gconfig.max_new_tokens", 20480, "section 4.1"),
            PaperValue("actor.optimizer.lr", 1e-6, "section 4.1"),
        ),
    ),
    "gspo": Source(
        "Group Sequence Policy Optimization (GSPO)",
        "https://arxiv.org/abs/2507.18071",
        2025,
        "section 4.1; GSPO-token: section 4.3",
        (
            "J = 1/G Σ_i min(s_i A_i, clip(s_i, 1-ε_low, 1+ε_high) A_i), s_i = (π(o_i)/π_old(o_i))^(1/|o_i|)",
            GROUP_SCORE,
        ),
        (
            PaperValue("actor.eps_clip", 3e-4, "section 5.1"),
            PaperValue("actor.eps_clip_higher", 4e-4, "section 5.1"),
            PaperValue("actor.kl_loss_coef", 0.0, "verl pull request 2775"),
            PaperValue("actor.ppo_n_minibatches", 4, "section 5.1"),
        ),
    ),
    "sapo": Source(
        "Soft Adaptive Policy Optimization (SAPO)",
        "https://arxiv.org/abs/2511.20347",
        2025,
        "section 3",
        (
            "J = 1/G Σ_i 1/|o_i| Σ_t f(ρ_it) A_i, f(ρ) = (4/τ) σ(τ (ρ - 1)), τ = τ_pos for A_i > 0, else τ_neg",
            GROUP_SCORE,
        ),
        (
            PaperValue("actor.sapo_tau_pos", 1.0, "defaults of verl and TRL"),
            PaperValue("actor.sapo_tau_neg", 1.05, "defaults of verl and TRL"),
        ),
    ),
    "skywork_or1": Source(
        "Skywork Open Reasoner 1 Technical Report (MAGIC)",
        "https://arxiv.org/abs/2505.22312",
        2025,
        "section 3",
        (
            "J = 1/Σ_i|o_i| Σ_i Σ_t [ min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i) + α_k H_t(π) ]",
            GROUP_SCORE,
        ),
        (
            PaperValue("actor.adaptive_entropy.target", 0.2, "project blog"),
            PaperValue("actor.adaptive_entropy.delta", 0.005, "project blog"),
            PaperValue("gconfig.n_samples", 16, "project README"),
            PaperValue("actor.optimizer.lr", 1e-6, "project README"),
        ),
    ),
    "cispo": Source(
        "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention (CISPO)",
        "https://arxiv.org/abs/2506.13585",
        2025,
        "section 3.1",
        (
            "J = 1/Σ_i|o_i| Σ_i Σ_t sg[clip(ρ_it, 1-ε_low, 1+ε_high)] A_i log π(o_it)",
            GROUP_SCORE,
        ),
    ),
    "decoupled_clip": Source(
        ARTICLE,
        "",
        None,
        "section 3.1, where it stands under the name of DAPO",
        ("L_it = clip(ρ_it, 1-ε_low, 1+ε_high) A_i, L_i = 1/|o_i| Σ_t L_it", GROUP_SCORE),
    ),
    "gspo_smoothed": Source(
        ARTICLE,
        "",
        None,
        "section 4.1, Group-wise Smoothed Policy Optimization",
        (
            "A_i = (r_i - μ_s) / sqrt(σ_s² + ε)",
            "μ_s ← β μ_s + (1-β) mean(batch), σ_s² ← β σ_s² + (1-β) var(batch), β from 0.9 to 0.99",
        ),
        (PaperValue("actor.adv_norm.ema.beta", 0.9, "section 4.1"),),
    ),
    "sapo_selfadaptive": Source(
        ARTICLE,
        "",
        None,
        "sections 5.1 and 5.2, Self-Adaptive Policy Optimization",
        (
            "ε_t = clip(ε_min + (ε_max - ε_min) · IQR(A_t)/IQR_ref, ε_min, ε_max)",
            "more samples for prompts on which the policy is unsure, by entropy or by the variance of the rewards",
        ),
    ),
    "areal_ppo": _areal((AREAL_CLIPPED, "A_it from a critic by GAE, then normalised over the batch"), "batch", "batch"),
    "areal_grpo": _areal((AREAL_CLIPPED, BATCH_SCORE), "batch", "batch", importance_sampling_level="token"),
    "areal_drgrpo": _areal((AREAL_CLIPPED, "A_i = r_i - mean(group)"), "group", None),
    "areal_liteppo": _areal((AREAL_CLIPPED, "A_i = (r_i - mean(group)) / std(batch)"), "group", "batch"),
    "areal_rloo": _areal(
        (AREAL_CLIPPED, "A_i = r_i - 1/(G-1) Σ_(j≠i) r_j"), "group", None, **{"adv_norm.mean_leave1out": True}
    ),
    "areal_gspo": _areal(
        (AREAL_CLIPPED, "u_i = exp(1/|o_i| Σ_t log π/π_prox) on every token", BATCH_SCORE),
        "batch", "batch", importance_sampling_level="sequence",
    ),
    "areal_dapo": _areal(
        (AREAL_CLIPPED.replace("1-ε, 1+ε", "1-ε_low, 1+ε_high"), BATCH_SCORE), "batch", "batch", eps_clip=0.2
    ),
    "areal_sapo": _areal(
        ("J = 1/Σ_i|o_i| Σ_i Σ_t (4/τ) σ(τ (ρ_it - 1)) A_i, τ by the sign of A_i", BATCH_SCORE),
        "batch", "batch", use_sapo_loss=True, sapo_tau_pos=1.0, sapo_tau_neg=1.05, use_decoupled_loss=False,
    ),
}  # fmt: skip
