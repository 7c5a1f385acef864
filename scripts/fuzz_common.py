"""What the parts of `fuzz.py` share: what counts as a good refusal, what is wrong otherwise, and commands run in this process."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from partita.cli import USER_ERRORS, main

Try = Callable[[random.Random, Path], str]
"""Makes one input in a folder, feeds it, and says in a word what came of it. Raises a refusal, or Wrong."""
REFUSALS = USER_ERRORS
LONGEST = 20_000  # characters of a message that a person can still read the beginning of
_UNHELPFUL = re.compile(r"Traceback \(most recent|object at 0x[0-9a-f]+|<class '")


class Wrong(AssertionError):
    """What came out is neither the whole result nor a refusal that names its cause."""


class Hang(BaseException):
    """A case took too long. No Exception: nothing on the way may take it for a fault of the input."""


def check_message(message: str, names: str) -> None:
    """Raise Wrong for a message that a person could not act upon. names: a pattern of what it must name."""
    if len(message.strip()) < 12:
        raise Wrong(f"the message says nothing: {message!r}")
    if len(message) > LONGEST:
        raise Wrong(f"a message of {len(message)} characters: {message[:300]!r}")
    if found := _UNHELPFUL.search(message):
        raise Wrong(f"the message shows {found[0]!r}: {message[:300]!r}")
    if not re.search(names, message):
        raise Wrong(f"the message names nothing of {names}: {message[:300]!r}")


def command(*words: object) -> tuple[int, str, str]:
    """The command `partita` in this process, its streams encoded as a terminal's are: code, output and errors."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=how) for how in ("strict", "backslashreplace"))
    before, code, threads = sys.argv, 0, torch.get_num_threads()
    sys.argv = ["partita", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv = before
        torch.set_num_threads(threads)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8", "replace"))  # pyright: ignore[reportAttributeAccessIssue]
    return code, texts[0], texts[1]


def check_command(words: list[object], names: str) -> str:
    """Run a command and raise Wrong unless it ends well, or with one readable error."""
    code, out, err = command(*words)
    if code not in (0, 1, 2):
        raise Wrong(f"exit code {code}: {err[-500:]!r}")
    if code:
        where = err.find("error: ") if "error: " in err else err.find("Error")
        check_message(err[max(where, 0) :], names)
    elif not out.strip():
        raise Wrong(f"`partita {' '.join(map(str, words))[:200]}` said nothing")
    return "shown" if code == 0 else "refused"


def quiet() -> None:
    """No hub, no progress bars, one thread: what is fuzzed is ours."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    torch.set_num_threads(1)
