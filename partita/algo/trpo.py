"""TRPO's step on a policy small enough to be exact: a softmax over a few actions, in one state.

It shows what a clip replaces. TRPO (Schulman et al. 2015, arXiv 1502.05477) bounds how far the *distribution* moves in one
step; PPO only takes the gradient from tokens whose ratio has moved far enough.
Shapes: V actions.
Left out: conjugate gradients, because F⁻¹g of one softmax is known in closed form, and the line search, which shortens a step
whose exact KL is above δ: `NaturalStep.exact_kl` shows by how much it is. No algorithm is composed of this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from partita.ops.logprobs import Side, full_kl


@dataclass(frozen=True)
class NaturalStep:
    """One step and what it does, float64.

    gradient_V: of the expected advantage with respect to the logits. fisher_VV: the Hessian of KL(old ‖ new) at the old
    logits. step_V: what is added to them, of mean 0: a constant shift of all logits changes nothing. quadratic_kl is
    ½ xᵀFx, exact_kl KL(old ‖ new) in nats, surrogate_gain E_new[A] - E_old[A]; each 0-d.
    """

    gradient_V: Tensor
    fisher_VV: Tensor
    step_V: Tensor
    quadratic_kl: Tensor
    exact_kl: Tensor
    surrogate_gain: Tensor


@torch.no_grad()
def natural_gradient_step(logits_V: Tensor, advantages_V: Tensor, delta: float) -> NaturalStep:
    """x = sqrt(2δ / gᵀF⁻¹g) · F⁻¹g: the largest rise of E[A] to first order with KL(old ‖ new) ≤ δ to second order.

    g_v = p_v (A_v - E[A]), F = diag(p) - ppᵀ (TRPO, arXiv 1502.05477, section 6 and appendix C; natural gradient: Kakade
    2001). F is singular along the constant shift; its pseudo-inverse times g is A minus its mean. Equal advantages give
    a step of 0. `delta` is in nats. Raises ValueError for a delta that is not positive.
    """
    if not delta > 0:
        raise ValueError(f"the trust region needs a positive delta in nats, not {delta}")
    logits_V, advantages_V = logits_V.to(torch.float64), advantages_V.to(torch.float64)
    p_V = torch.softmax(logits_V, 0)
    gradient_V = p_V * (advantages_V - p_V @ advantages_V)
    fisher_VV = torch.diag(p_V) - torch.outer(p_V, p_V)
    # F (A - c) = p (A - E[A]) = g for any c, and mean 0 makes it the pseudo-inverse's: no small eigenvalue is inverted
    direction_V = advantages_V - advantages_V.mean()
    length = gradient_V @ direction_V
    # by range: the mean of equal numbers may be off by a rounding, of which the scale below would make a full step
    flat = advantages_V.max() == advantages_V.min()
    step_V = torch.where(flat | (length <= 0), 0.0, torch.sqrt(2 * delta / length) * direction_V)
    new_V = logits_V + step_V
    return NaturalStep(
        gradient_V=gradient_V,
        fisher_VV=fisher_VV,
        step_V=step_V,
        quadratic_kl=step_V @ fisher_VV @ step_V / 2,
        exact_kl=full_kl(Side(_as_logits, logits_V[None]), Side(_as_logits, new_V[None]), chunk=1)[0],
        surrogate_gain=(torch.softmax(new_V, 0) - p_V) @ advantages_V,
    )


def _as_logits(hidden_TD: Tensor) -> Tensor:
    """The head of a policy whose hidden state is its logits."""
    return hidden_TD
