"""What `benchmarks/plan.py` makes of its measurements, by hand."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from partita.run import load_run_config
from partita.trainer import QUICKSTART

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))  # scripts that are run, not a package
import plan

GIB = 2**30
PHASES = {"sample": (3.0, 2.0), "score": (0.0, 0.01)}
ONE = plan.Compared(plan.CASES[0], (4.4 * GIB, 4.0 * GIB), 4.5 * GIB, (12.0, 10.0), PHASES)


def test_ratios_are_of_planned_over_measured():
    assert ONE.ratios == pytest.approx((1.1, 1.2))
    memory, step = plan.lines(ONE)
    assert (memory.name, memory.ours, memory.peer_value, memory.ratio) == (
        "plan memory demo",
        4.4,
        4.0,
        pytest.approx(1.1),
    )
    assert memory.note == "at most 4.50"
    assert (step.name, step.ours, step.unit, step.ratio) == ("plan step demo", 12.0, "s/step", pytest.approx(1.2))
    assert (
        plan.table([ONE]).splitlines()[-1]
        == "| demo | 4.40 (4.50) | 4.00 | 1.10 | 12.0 | 10.0 | 1.20 | sample 3.0 / 2.0 |"
    )


def test_what_is_too_far_off_is_named():
    assert plan.off([ONE], timed=True) == []
    far = replace(ONE, memory=(5.0 * GIB, 4.0 * GIB), step=(7.0, 10.0))
    assert plan.off([far], timed=True) == ["demo: memory 1.25", "demo: step 0.70"]
    assert plan.off([far], timed=False) == ["demo: memory 1.25"]
    tight = replace(ONE, most=3.4 * GIB)
    assert plan.off([tight], timed=True) == ["demo: memory above the most"]


@pytest.mark.parametrize("case", plan.CASES, ids=lambda case: case.name)
def test_every_case_is_a_config(case: plan.Case):
    words = [f"algorithm={case.preset}", *case.words, *plan.STILL]
    assert load_run_config([QUICKSTART], words).value.actor.skip_dead_samples is False
