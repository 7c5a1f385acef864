"""What Python brought to a run is noted by name and compared by name."""

from pathlib import Path

import pytest

from partita.extras import Brought, Extras, brought_to
from partita.rollout.workflow import SingleTurn
from partita.runfolder import RunFolderError


def own(response: str) -> float:
    return 1.0


class Judge:
    def __call__(self, response: str) -> float:
        return 0.0


def test_names_are_kept_and_nothing_leaves_no_file(tmp_path: Path) -> None:
    given = Extras([own, Judge()], SingleTurn(), lambda group: True)
    given.note(tmp_path)
    assert brought_to(tmp_path) == given.names == Brought(("own", "Judge"), "SingleTurn", True)
    given.check(tmp_path)
    Extras().note(tmp_path)
    assert brought_to(tmp_path) == Brought()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "now", [Extras(), Extras([Judge()]), Extras([own], SingleTurn()), Extras([own], None, lambda group: True)]
)
def test_a_difference_in_any_of_them_is_refused(tmp_path: Path, now: Extras) -> None:
    Extras([own]).note(tmp_path)
    with pytest.raises(
        RunFolderError, match=rf"reward own from Python.*rewards=\[own\], resume='{tmp_path}'\)\.train\(\)"
    ):
        now.check(tmp_path)


def test_the_command_that_goes_on() -> None:
    assert Brought().resume_command(Path("r"), "seed=2") == "partita train --resume r seed=2"
    assert Brought((), "W").resume_command(Path("r")) == "PPOTrainer(config, resume='r').train(workflow=W(...))"
