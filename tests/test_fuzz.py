"""A few seconds of `scripts/fuzz.py`: broken input is read whole or refused by a message that names its cause."""

import random
import warnings
from pathlib import Path

import fuzz
import pytest
from fuzz_common import Wrong, check_message

from partita.tasks.files import DataError


@pytest.mark.slow
@pytest.mark.parametrize("area", fuzz.AREAS)
def test_nothing_breaks_in_the_first_cases(area: str) -> None:
    came, found = fuzz.fuzz([area], seconds=600.0, seed=1, cases=60)
    assert [finding.told(1) for finding in found] == []
    assert sum(came.values()) == 60
    assert len(came) >= 2, "all cases came to the same: what is made is not varied"


def test_a_case_is_made_from_its_number_alone(tmp_path: Path) -> None:
    drawn = []

    def attempt(rng: random.Random, folder: Path) -> str:
        drawn.append(rng.random())
        return "kept"

    for case in (1, 2, 1):
        assert fuzz.run_case("rows", attempt, 3, case, tmp_path) == ("kept", None)
    assert drawn[0] == drawn[2] != drawn[1]


def test_refusals_must_name_their_cause_and_everything_else_is_a_finding(tmp_path: Path) -> None:
    def raising(error: Exception):
        def attempt(rng: random.Random, folder: Path) -> str:
            raise error

        return fuzz.run_case("rows", attempt, 1, 1, tmp_path)

    assert raising(DataError("train_dataset: rows.jsonl row 3: no 'prompt'")) == ("refused", None)
    for error, words in (
        (DataError("bad"), "says nothing"),
        (DataError("something is wrong somewhere"), "names nothing of"),
        (DataError("train_dataset: <object at 0x7f00>"), "shows 'object at 0x7f00'"),
        (KeyError("prompt"), "KeyError"),
        (Wrong("4 rows, 3 counted"), "4 rows, 3 counted"),
    ):
        _, finding = raising(error)
        assert finding is not None and words in finding.what
        assert "--only rows --case 1" in finding.told(1)


def test_hangs_and_floods_of_warnings_are_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "CPU_SECONDS", 0.2)

    def endless(rng: random.Random, folder: Path) -> str:
        while True:
            pass

    def loud(rng: random.Random, folder: Path) -> str:
        for number in range(10):
            warnings.warn(f"number {number}", stacklevel=1)
        return "kept"

    came, finding = fuzz.run_case("rows", endless, 1, 1, tmp_path)
    assert came == "raised" and finding is not None and finding.what.startswith("Hang")
    came, finding = fuzz.run_case("rows", loud, 1, 1, tmp_path)
    assert finding is not None and finding.what == "10 warnings, the first: number 0"


def test_a_message_may_be_long_but_not_endless() -> None:
    check_message("rows.jsonl row 3: " + "x" * 1000, "rows")
    with pytest.raises(Wrong, match="a message of 30018 characters"):
        check_message("rows.jsonl row 3: " + "x" * 30_000, "rows")
