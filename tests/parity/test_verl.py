"""verl 0.9.1's own functions and our compositions give the same numbers, or the two that the table names."""

import importlib
import os
from importlib.metadata import version

import pytest
from parity.compare import check_agreement, check_difference, params
from parity.verl_cases import VERL, VERL_ABSENT

pytestmark = pytest.mark.slow
pytest.importorskip(
    "verl", reason="needs verl 0.9.1: `make parity`, or the extra bench and pip install --no-deps verl==0.9.1"
)
os.environ.setdefault("VERL_FORCE_DEVICE", "cpu")  # before the import: it looks for a device once
verl_peer = importlib.import_module("parity.verl_peer")


def run(case, batch):
    return verl_peer.CALLS[case.call](batch, case.setting)


def named(topic, key):
    """What the table knows of a topic: the values of a key of the settings, and what is absent."""
    known = {case.setting[key] for case in VERL if key in case.setting}
    return known | {name for absent in VERL_ABSENT if absent.topic == topic for name in absent.names}


def test_it_is_the_version_that_the_table_names():
    assert version("verl") == "0.9.1"


@pytest.mark.parametrize("case", params(VERL, differ=False))
def test_agrees(case):
    check_agreement(case, run)


@pytest.mark.parametrize("case", params(VERL, differ=True))
def test_differs(case):
    check_difference(case, run)


def test_everything_it_has_is_in_the_table():
    core, helper = verl_peer.core_algos, verl_peer.rollout_corr_helper
    assert named("loss", "loss_mode") == set(core.POLICY_LOSS_REGISTRY)
    assert named("advantage", "adv_estimator") == set(core.ADV_ESTIMATOR_REGISTRY)
    assert named("correction", "rollout_rs") >= helper.SUPPORTED_ROLLOUT_RS_OPTIONS
