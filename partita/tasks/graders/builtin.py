"""The reward functions that a config can name by a single word.

Left out: everything longer than a word; `reward.functions` also takes `package.module:function` and
`path/file.py:function`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from partita.tasks.graders.math import math_correct, math_correct_async
from partita.tasks.graders.text import last_number_correct, think_answer_format


@dataclass(frozen=True)
class Builtin:
    """A reward function of ours and why the training process may run it itself, without a worker.

    `on_loop` None: the function only looks at text and is quick. Otherwise `on_loop` takes the function's arguments and
    `seconds`, and keeps that limit by itself.
    """

    function: Callable[..., float]
    on_loop: Callable[..., Coroutine[Any, Any, float]] | None = None


BUILTINS: dict[str, Builtin] = {
    "math_correct": Builtin(math_correct, math_correct_async),
    "last_number_correct": Builtin(last_number_correct),
    "think_answer_format": Builtin(think_answer_format),
}
