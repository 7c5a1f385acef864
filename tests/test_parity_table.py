"""docs/parity.md and docs/zh/parity.md are the table that tests/parity runs, in two languages."""

import re

import pages
import parity_table
import pytest
from parity import ours
from parity.cases import FUNCTIONS

GENERATED = parity_table.generated()
ENGLISH, CHINESE = (GENERATED[path] for path in parity_table.PAGES.values())


def test_the_pages_on_disk_are_the_generated_ones():
    assert pages.stale(GENERATED, parity_table.COMMAND) == []


def test_both_languages_have_the_same_shape_and_quote_the_same_code():
    shapes = [re.findall(r"^(?:#+ |\||- )", text, flags=re.MULTILINE) for text in (ENGLISH, CHINESE)]
    quoted = [set(re.findall(r"`([^`\n]+)`", text)) for text in (ENGLISH, CHINESE)]
    assert shapes[0] == shapes[1]
    assert quoted[0] == quoted[1]


def test_no_two_rows_have_one_name():
    names = [(case.peer, case.topic, case.what.en, case.differs is None) for case in parity_table.CASES]
    assert len(names) == len(set(names)) > 100


@pytest.mark.parametrize("case", parity_table.CASES, ids=lambda case: f"{case.peer} {case.topic}: {case.what.en}")
def test_every_row_can_be_run_here(case):
    assert case.compared in ours.COMPARED
    assert (case.peer, case.call) in FUNCTIONS
    if case.topic != "pairs":
        ours.algorithm(case)
