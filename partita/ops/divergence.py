"""Per-token estimators of KL(p ‖ q) from tokens sampled by p, and the clamp that keeps every exponential finite.

Shapes: elementwise, usually T packed trained tokens. The argument is always log p - log q, in nats.
Formulas: http://joschu.net/blog/kl-approx.html (k1, k2, k3). Which gradient each has when it is differentiated as a
*loss* on tokens of p: k1 none in expectation, k2 that of KL(p ‖ q), k3 that of KL(q ‖ p). Subtracted from the
*reward*, k1 has the gradient of KL(p ‖ q) and the others have neither.
Left out: the full-vocabulary divergence, which needs logits and lives beside the log-probs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Estimator = Callable[[Tensor], Tensor]

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are held within ± this many nats before any exp; outside, the gradient is 0."""


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    """Hold a log-ratio within ±20 nats. Before the exp, never after: 0 · inf in the backward pass is NaN."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def k1(log_ratio: Tensor) -> Tensor:
    """d: unbiased, of either sign."""
    return log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """d² / 2: never negative, biased by the third order of d."""
    return log_ratio.square() / 2


def k3(log_ratio: Tensor) -> Tensor:
    """exp(-d) - 1 + d: unbiased and never negative (DeepSeekMath, arXiv 2402.03300, equation 4)."""
    d = clamp_log_ratio(log_ratio)
    return torch.expm1(-d) + d  # expm1: exp(-d) - 1 has no digits left where d is small


def absolute(log_ratio: Tensor) -> Tensor:
    """|d|: a distance in log-prob, not an estimate of the divergence."""
    return log_ratio.abs()


def k3_value_k2_grad(log_ratio: Tensor) -> Tensor:
    """The value of k3 with the gradient of k2: readable as a divergence, with the true gradient of KL(p ‖ q)."""
    held = k2(log_ratio)
    return held + (k3(log_ratio) - held).detach()


ESTIMATORS: dict[str, Estimator] = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute, "k3_value_k2_grad": k3_value_k2_grad}
"""The names that `kl_estimator` and `kl_loss_estimator` take."""
