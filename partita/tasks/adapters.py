"""The ways in which other tools call reward functions, so that functions written for them run unchanged.

A style says what a function is given and how what it returns is read (`tasks.reward_readings`). It is chosen by the names of
the function's parameters; where two styles fit, the config must say which.

Left out: which function gets what (`tasks.binding`), and where it runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from partita.records import Prompt, StopReason
from partita.tasks.graders.final import with_opened_thought
from partita.tasks.reward_call import TOLD, TrainerState

_MISSING = object()


class RewardSetupError(ValueError):
    """The rewards of a run cannot work as configured; found before anything is sampled."""


@dataclass(frozen=True)
class Answer:
    """What a policy answered: text without special tokens, and the ids as sampled, the end included where there is one.

    to: the function that is asked about it, empty for the reward model. group: number of the group that it is a sample of,
    None outside of a rollout: then answers to one prompt are one group. transcript: all that followed the prompt, with what tools
    and environments said; None of a single turn.
    """

    prompt: Prompt
    text: str
    ids: tuple[int, ...]
    stop_reason: StopReason = "stop"
    to: str = ""
    group: int | None = None
    transcript: str | None = None


@dataclass(frozen=True)
class Style:
    """How a tool calls a reward function.

    values: everything that it gives about some answers, by name; one answer only where not `together`. positional: what is
    given by place. quiet: names that only a function that names them gets, not one with **kwargs. how: what is told of it.
    """

    name: str
    values: Callable[[Sequence[Answer], TrainerState], dict[str, Any]]
    how: str = ""
    positional: tuple[str, ...] = ()
    quiet: tuple[str, ...] = ()
    together: bool = False


def own_values(answers: Sequence[Answer], state: TrainerState) -> dict[str, Any]:
    """Everything a reward may ask for by name. The names of `GIVEN` win over columns; `row` still has those. A column called
    transcript keeps its name where there was a single turn, whose transcript is the response.
    """
    (answer,) = answers
    prompt = answer.prompt
    values: dict[str, Any] = {str(name): value for name, value in prompt.row.items() if str(name).isidentifier()}
    values.pop("answer", None)
    if prompt.answer is not None:
        values["answer"] = prompt.answer
    if answer.transcript is not None or "transcript" not in values:
        values["transcript"] = answer.text if answer.transcript is None else answer.transcript
    return values | {
        "response": answer.text,
        "completion": answer.text,
        "prompt": prompt.text,
        "messages": [dict(message) for message in prompt.messages],
        "row": dict(prompt.row),
        "tokens": list(answer.ids),
        "stop_reason": answer.stop_reason,
    }


def graded_values(answers: Sequence[Answer], state: TrainerState) -> dict[str, Any]:
    """`own_values` for built-in graders, which must know a thought that the prompt opened."""
    values = own_values(answers, state)
    return values | {"response": with_opened_thought(answers[0].prompt.text, answers[0].text)}


GIVEN = ("response", "completion", "answer", "prompt", "messages", "row", "tokens", "stop_reason", "transcript")


def _columns(prompt: Prompt, taken: Collection[str]) -> dict[str, Any]:
    """The columns as the data have them, but for those whose names are taken. The gold answer stands in for a missing
    `answer`.
    """
    found: dict[str, Any] = {} if prompt.answer is None else {"answer": prompt.answer}
    return found | {str(name): value for name, value in prompt.row.items() if name not in taken}


def trl_values(answers: Sequence[Answer], state: TrainerState) -> dict[str, Any]:
    """Lists over the answers. Where the row has its prompt as messages, prompts and completions are messages; else texts."""
    talk = has_messages(answers[0].prompt)
    taken = ("prompt", "completion", "prompts", "completions", "completion_ids")
    columns = [_columns(answer.prompt, taken) for answer in answers]
    # copies: what a function does to the value of one response must not show in that of another
    given = {name: [copy.deepcopy(one[name]) for one in columns] for name in columns[0]}
    return given | {
        "prompts": [[dict(m) for m in one.prompt.messages] if talk else one.prompt.text for one in answers],
        "completions": [[{"role": "assistant", "content": one.text}] if talk else one.text for one in answers],
        "completion_ids": [list(one.ids) for one in answers],
        "trainer_state": state,
    }


def has_messages(prompt: Prompt) -> bool:
    """Whether the row has the prompt as messages, in a list or a struct of lists, not as a text that became one."""
    said = [str(message["content"]) for message in prompt.messages]
    return any(_is_said(_contents(value), said) for value in prompt.row.values())


def _contents(value: Any) -> list[Any]:
    """The contents of a list of messages, nothing for other values."""
    if isinstance(value, Mapping):
        whole = cast("Mapping[str, Any]", value)
        contents = whole.get("content")
        return list(contents) if isinstance(contents, list) and isinstance(whole.get("role"), list) else []
    if not isinstance(value, list | tuple) or not all(isinstance(one, Mapping) and "role" in one for one in value):
        return []
    return [cast("Mapping[str, Any]", one).get("content") for one in cast("Sequence[Any]", value)]


def _is_said(contents: Sequence[Any], said: Sequence[str]) -> bool:
    """Whether these are the messages of the prompt; an instruction may follow the user's words there."""
    return bool(contents) and all(any(one.startswith(str(content or "")) for one in said) for content in contents)


def verl_values(answers: Sequence[Answer], state: TrainerState) -> dict[str, Any]:
    """The response alone; `ground_truth` as stored; `extra_info` is empty where the row has none."""
    (answer,) = answers
    row = answer.prompt.row
    values: dict[str, Any] = {"solution_str": answer.text, "extra_info": row.get("extra_info") or {}}
    if "data_source" in row:
        values["data_source"] = row["data_source"]
    gold = _stored_gold(answer.prompt)
    return values if gold is _MISSING else values | {"ground_truth": gold}


def _stored_gold(prompt: Prompt) -> Any:
    """`reward_model.ground_truth` of the row, else its `ground_truth`, else the gold answer that was read from it."""
    judged = prompt.row.get("reward_model")
    if isinstance(judged, Mapping) and "ground_truth" in judged:
        return cast("Mapping[str, Any]", judged)["ground_truth"]
    if "ground_truth" in prompt.row:
        return prompt.row["ground_truth"]
    return _MISSING if prompt.answer is None else prompt.answer


def areal_values(answers: Sequence[Answer], state: TrainerState) -> dict[str, Any]:
    """One string each, the ids of both, and the row's columns."""
    (answer,) = answers
    given = {
        "prompt": answer.prompt.text,
        "completions": answer.text,
        "prompt_ids": list(answer.prompt.ids),
        "completion_ids": list(answer.ids),
    }
    return _columns(answer.prompt, given) | given


def openrlhf_values(answers: Sequence[Answer], state: TrainerState) -> dict[str, Any]:
    """Texts: prompt with response, prompt, and gold answer, which is empty for data without one."""
    return {
        "queries": [one.prompt.text + one.text for one in answers],
        "prompts": [one.prompt.text for one in answers],
        "labels": [one.prompt.answer or "" for one in answers],
    }


OWN = Style("partita", own_values, quiet=GIVEN)
GRADED = Style("partita", graded_values, quiet=GIVEN)
STYLES: dict[str, Style] = {
    "partita": OWN,
    "trl": Style(
        "trl", trl_values, "as TRL does: completions and columns in lists, all responses to a prompt together",
        quiet=(*TOLD, "trainer_state"), together=True,
    ),
    "verl": Style("verl", verl_values, "as verl does: one solution_str with its ground_truth"),
    "areal": Style(
        "areal", areal_values, "as AReaL does: one prompt, completion and their ids by place, columns by name",
        positional=("prompt", "completions", "prompt_ids", "completion_ids"),
    ),
    "openrlhf": Style(
        "openrlhf", openrlhf_values, "as OpenRLHF does: queries, prompts and labels in lists, all responses to a prompt together",
        positional=("queries", "prompts", "labels"), together=True,
    ),
}  # fmt: skip

# What only one tool gives. The names of a whole signature are looked for first: AReaL's has names of TRL's in it.
_WHOLE = {
    "areal": {"prompt", "completions", "prompt_ids", "completion_ids"},
    "openrlhf": {"queries", "prompts"},
    "verl": {"solution_str"},
}
_SINGLE = {"trl": {"completions", "completion_ids", "prompts"}, "partita": {"response", "completion"}}


def style_of(function: str, names: Sequence[str], wanted: str) -> Style:
    """The style that is `wanted`, with "auto" the only one that fits these names of parameters.

    Raises RewardSetupError naming two that fit, and how to say which is meant.
    """
    if wanted != "auto":
        return STYLES[wanted]
    left = set(names)
    fitting = [style for style, whole in _WHOLE.items() if whole <= left]
    left -= {name for style in fitting for name in _WHOLE[style]}
    fitting += [style for style, marks in _SINGLE.items() if marks & left]
    if len(fitting) > 1:
        raise RewardSetupError(
            f"reward function {function!r} with the parameters {', '.join(names)} could be called as {' or '.join(fitting)} "
            f"does; say which: reward.options.{function}.style={fitting[0]}"
        )
    return STYLES[fitting[0]] if fitting else OWN
