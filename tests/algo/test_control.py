"""Controllers: applied in order, observed at their moment, logged and resumed."""

from dataclasses import dataclass, replace

import pytest

from partita.algo.compose import compose
from partita.algo.control import Controls
from partita.algo.explain import keys_of


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
