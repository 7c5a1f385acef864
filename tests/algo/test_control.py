"""Controllers: applied in order, observed at their moment, logged and resumed; and what rules share."""

import math
from dataclasses import dataclass, replace

import pytest

from partita.algo.compose import compose
from partita.algo.control import Bounds, Controls, finite, with_coef
from partita.algo.penalty import EntropyBonus, KlLoss
from partita.algo.presets import keys_of
from partita.ops.divergence import k3


@dataclass
class DoubleWhenFar:
    """Doubles the KL coefficient while the policy is farther than the target: a controller of the simplest kind."""

    coef: float
    target: float
    name: str = "kl"
    when: str = "after_epochs"

    def observe(self, metrics):
        if metrics["kl_ref/k3"] > self.target:
            self.coef *= 2

    def apply(self, algorithm):
        (penalty,) = algorithm.penalties
        return replace(algorithm, penalties=(replace(penalty, coef=self.coef),))

    def state_dict(self):
        return {"coef": self.coef}

    def load_state_dict(self, state):
        self.coef = state["coef"]


@pytest.fixture
def algorithm():
    return compose(keys_of("grpo"), n_samples=4, max_new_tokens=8)


def test_fixed_values_need_no_controller(algorithm):
    controls = Controls()
    assert controls.apply(algorithm) is algorithm
    controls.observe("after_epochs", {"kl_ref/k3": 1.0})
    controls.load_state_dict(controls.state_dict())
    assert controls.logged() == {}


def test_a_value_moves_at_its_moment_and_not_in_the_part(algorithm):
    controls = Controls((DoubleWhenFar(0.04, 0.01),))
    controls.observe("before_credit", {"kl_ref/k3": 1.0})
    assert controls.apply(algorithm).penalties == algorithm.penalties
    controls.observe("after_epochs", {"kl_ref/k3": 1.0})
    assert controls.apply(algorithm).penalties[0].coef == 0.08
    assert algorithm.penalties[0].coef == 0.04
    assert controls.logged() == {"control/kl/coef": 0.08}


def test_a_resumed_run_goes_on_from_the_saved_value(algorithm):
    before, after = Controls((DoubleWhenFar(0.04, 0.01),)), Controls((DoubleWhenFar(0.04, 0.01),))
    before.observe("after_epochs", {"kl_ref/k3": 1.0})
    after.load_state_dict(before.state_dict())
    assert after.apply(algorithm).penalties[0].coef == 0.08


def test_a_checkpoint_of_other_controllers_is_refused():
    with pytest.raises(ValueError, match=r"\['kl'\], this run has \[\]"):
        Controls().load_state_dict({"kl": {"coef": 0.1}})
    with pytest.raises(ValueError, match="distinct names"):
        Controls((DoubleWhenFar(0.1, 0.1), DoubleWhenFar(0.2, 0.1)))


def test_a_value_is_held_within_closed_bounds():
    bounds = Bounds(0.1, 0.3)
    assert [bounds(value) for value in (-math.inf, 0.1, 0.2, 0.3, math.inf)] == [0.1, 0.1, 0.2, 0.3, 0.3]
    assert bounds.inside(0.3, "eps") == 0.3
    with pytest.raises(ValueError, match=r"eps: the start 0\.31 is outside its bounds, 0\.1 to 0\.3"):
        bounds.inside(0.31, "eps")


def test_metrics_are_all_there_or_none():
    assert finite({"a": 1.0, "b": 0.0, "c": math.nan}, "b", "a") == (0.0, 1.0)
    assert finite({"a": 1.0, "c": math.nan}, "a", "c") is None
    assert finite({"a": 1.0}, "a", "b") is None


def test_one_kind_of_coefficient_is_replaced():
    parts = (KlLoss(0.1, k3), EntropyBonus(0.2))
    assert with_coef(parts, EntropyBonus, 0.5) == (parts[0], EntropyBonus(0.5))
    with pytest.raises(ValueError, match="no KlLoss whose coefficient could be set"):
        with_coef(parts[1:], KlLoss, 0.5)
