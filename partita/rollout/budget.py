"""How many groups may be started now: bounded by how old their samples may be when they are trained on.

Left out: the counters, which the rollouts keep.
"""

from __future__ import annotations

import math


def capacity(*, version: int, eta: int, accepted: int, running: int, batch: int, max_concurrent: int) -> int:
    """min(max_concurrent - running, (eta + version + 1) batch - (accepted + running)); negative or 0: start nothing.

    `version` weights were published, so `version` batches were trained on, and what is started now is trained on at most
    `eta` versions later: eta 0 is synchronous. `accepted` groups went into a batch or wait for one, over the whole run;
    it must be set to version x batch where a run resumes, or a burst of groups is started that are too old when their
    turn comes. Source: AReaL (arXiv 2505.24298, staleness-aware training), with the concurrency bound of its code.
    """
    return min(max_concurrent - running, (eta + version + 1) * batch - (accepted + running))


def oversampled(lacking: int, factor: float) -> int:
    """How many groups a round starts where a batch lacks `lacking` of them: `factor` times as many, rounded up.

    10 x 1.1 is 11: the product's own rounding error starts no group.
    """
    return math.ceil(round(lacking * factor, 6))
