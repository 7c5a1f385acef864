"""docs/graders.md names every grader and its options, and its programs run."""

import inspect
import re
from pathlib import Path

import pytest

from partita.tasks.graders.builtin import BUILTINS
from partita.tasks.graders.sources import SOURCES

PAGE = (Path(__file__).parents[3] / "docs" / "graders.md").read_text(encoding="utf-8")
QUOTED = set(re.findall(r"`([^`\n]+)`", PAGE))


def test_every_grader_and_option_is_named():
    assert set(BUILTINS) - QUOTED == set()
    given = {"response", "row", "answer", "tokens", "limit_seconds"}
    options = {name for builtin in BUILTINS.values() for name in inspect.signature(builtin.function).parameters} - given
    words = {word for quoted in QUOTED for word in re.split(r"[^\w]+", quoted)}
    assert options - words == set()
    assert set(SOURCES) - QUOTED == set()


@pytest.mark.slow
def test_programs_run():
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "graders.md", "exec"), {})
