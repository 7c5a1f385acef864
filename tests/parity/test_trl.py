"""TRL 1.16.0's own trainers and our compositions give the same numbers, or the two that the table names."""

import importlib
import re
from importlib.metadata import version

import pytest
from parity.compare import check_agreement, check_difference, params
from parity.trl_cases import TRL, TRL_ABSENT

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:::(transformers|trl|parity)")]
pytest.importorskip("trl", reason="needs TRL 1.16.0: `make parity`, or the extra bench")
trl_peer = importlib.import_module("parity.trl_peer")


@pytest.fixture
def run(model_folder):
    return lambda case, batch: trl_peer.CALLS[case.call](batch, case.setting, model_folder)


def test_it_is_the_version_that_the_table_names():
    assert version("trl") == "1.16.0"


@pytest.mark.parametrize("case", params(TRL, differ=False))
def test_agrees(case, run):
    check_agreement(case, run)


@pytest.mark.parametrize("case", params(TRL, differ=True))
def test_differs(case, run):
    check_difference(case, run)


@pytest.mark.parametrize("trainer", ["GRPO", "DPO"])
def test_every_loss_it_has_is_in_the_table(trainer):
    config = {"GRPO": trl_peer.GRPOConfig, "DPO": trl_peer.DPOConfig}[trainer]
    described = config.__dataclass_fields__["loss_type"].metadata["help"]
    supported = re.search(r"values are:? (.*?)\.", described)
    names = set(re.findall(r"'(\w+)'", supported[1]))
    named = [case.setting["loss_type"] for case in TRL if "loss_type" in case.setting]
    known = {name for value in named for name in ([value] if isinstance(value, str) else value)}
    assert len(names) > 5
    assert names <= known | {name for absent in TRL_ABSENT for name in absent.names}
