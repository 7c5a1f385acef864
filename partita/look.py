"""What a run would see of its data: rows, lengths, prompts as text and ids, and what the reward says to the gold answers.

Nothing is trained or sampled: of a model only its tokenizer and its configuration are read. Left out: rewards that are
models, as these would have to be loaded, and rows to learn from (`offline.look`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace

from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerBase

from partita.build import longest, valid_section
from partita.models import load
from partita.records import Prompt
from partita.report.text import clean, shorten
from partita.run import RunConfig
from partita.tasks.dataset import TaskRows, load_rows
from partita.tasks.files import DataError
from partita.tasks.prompt import render_prompts
from partita.tasks.reward import RewardRuntime, Scored
from partita.tasks.settings import DatasetConfig
from partita.train.config import ActorConfig, LearnedModelConfig

IDS = 200  # token ids of a prompt that are shown
CHARACTERS = 4000  # of a prompt or a gold answer
SHARES = {"shortest": 0.0, "10 %": 0.1, "half": 0.5, "90 %": 0.9, "longest": 1.0}


@dataclass(frozen=True)
class Request:
    """What to show. rows: prompts in full; score: prompts whose gold answers are put before the reward; held_out: of the rows
    that are evaluated on.
    """

    rows: int = 3
    score: int = 100
    held_out: bool = False


@dataclass(frozen=True)
class Tried:
    """What the reward says to one response."""

    name: str
    scored: Scored

    def __str__(self) -> str:
        if self.scored.reward is None:
            return (
                f"{self.name}: {self.scored.status}, {self.scored.error.splitlines()[0] if self.scored.error else ''}"
            )
        parts = ", ".join(f"{name} {value:g}" for name, value in self.scored.parts.items())
        return f"{self.name}: {self.scored.reward:g}" + (f" ({parts})" if len(self.scored.parts) > 1 else "")


def look(config: RunConfig, request: Request, say: Callable[[str], None]) -> None:
    """Tell `say`, line by line. Raises what a run would raise at its start."""
    section, rows = _rows(config, request)
    known = known_of(config.actor, config.tokenizer_path)
    found = render_prompts(
        rows.rows, known.tokenizer, section, context=known.context, reserve=longest(config),
        section="valid_dataset" if request.held_out else "train_dataset",
    )  # fmt: skip
    scorer = _scorer(config, rows)
    try:
        notes = () if scorer is None else scorer.check(*rows.rows)
        for line in (
            *rows.notes,
            *found.notes,
            lengths("a prompt", [len(prompt.ids) for prompt in found.prompts]),
            *notes,
        ):
            say(line)
        wanted = found.prompts[: max(request.rows, request.score)]
        tried = asyncio.run(_try_all(scorer, wanted, known.tokenizer)) if scorer else [()] * len(wanted)
        for prompt, answers in zip(found.prompts[: request.rows], tried, strict=False):
            _show(prompt, answers, say)
        say("")
        for line in _verdict(config, wanted, tried) if scorer else [_no_function(config)]:
            say(line)
    finally:
        if scorer is not None:
            scorer.close()


def _rows(config: RunConfig, request: Request) -> tuple[DatasetConfig, TaskRows]:
    """The rows of a run, or those it is evaluated on. Raises DataError."""
    section = valid_section(config) if request.held_out else config.train_dataset
    if section is None:
        raise DataError("no held-out rows: set valid_dataset, or train_dataset.held_out")
    name = "valid_dataset" if request.held_out else "train_dataset"
    kept = request.held_out and config.valid_dataset is None and section.held_out > 0
    return section, load_rows(section, seed=config.seed, section=name, held_out=kept)


@dataclass(frozen=True)
class Known:
    """What is known of a model without its weights. stop_ids: every id that ends a completion; context: most tokens of a row."""

    tokenizer: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...]
    context: int


def known_of(actor: ActorConfig | LearnedModelConfig, tokenizer_path: str | None) -> Known:
    """The tokenizer that a run would use, and the configuration of its model. Raises ModelLoadError."""
    trust, source = actor.trust_remote_code, load._source(actor.path)
    tokenizer = load.load_tokenizer(tokenizer_path or actor.path, trust)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust)
    except (OSError, ValueError) as error:
        raise load.ModelLoadError(f"{actor.path}: its configuration cannot be read: {error}") from error
    configs = [config, config.get_text_config()]
    with suppress(OSError):  # a model without generation settings of its own
        configs.append(GenerationConfig.from_pretrained(source))
    context, _ = load._context(SimpleNamespace(config=config), tokenizer)
    return Known(tokenizer, load.find_stop_ids(tokenizer, configs), context)


def _scorer(config: RunConfig, rows: TaskRows) -> RewardRuntime | None:
    """The reward's functions; None where it has none, but a model or judges."""
    own = () if config.reward.complete else rows.functions
    if config.reward.complete and not config.reward.functions:
        return None
    return RewardRuntime(replace(config.reward, model=None, process_model=None, judges={}), own)


def _no_function(config: RunConfig) -> str:
    models = [name for name in (config.reward.model, config.reward.process_model) if name]
    found = [f"a model, {' and '.join(models)}, which is not loaded here"] if models else []
    judges = ", ".join(config.reward.judges)
    found += [f"judged by {judges}, who are not asked here"] if judges else []
    return f"the reward is {', and '.join(found)}"


def lengths(what: str, sizes: Sequence[int]) -> str:
    """How long things are, from the shortest to the longest."""
    ordered = sorted(sizes)
    told = (f"{name} {ordered[round(share * (len(ordered) - 1))]}" for name, share in SHARES.items())
    return f"tokens of {what}: {', '.join(told)}"


def shown_ids(ids: Sequence[int]) -> str:
    """Token ids on one line, the middle of many left out."""
    words = [str(one) for one in ids]
    if len(words) > IDS:
        words = [*words[: IDS // 2], f"[{len(words) - IDS} more]", *words[-IDS // 2 :]]
    return f"  ids: {' '.join(words)}"


async def _try_all(
    scorer: RewardRuntime, prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[Tried, ...]]:
    """What the reward says to the gold answers of each prompt, written in the usual ways, and to nothing, which comes last."""

    async def ask(prompt: Prompt, name: str, text: str) -> Tried:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return Tried(name, await scorer.score(prompt, text, list(ids), "stop"))  # pyright: ignore[reportArgumentType]

    async def ask_all(prompt: Prompt) -> tuple[Tried, ...]:
        return tuple(await asyncio.gather(*(ask(prompt, *one) for one in _responses(prompt))))

    return list(await asyncio.gather(*map(ask_all, prompts)))


def _responses(prompt: Prompt) -> list[tuple[str, str]]:
    """What a response might be, by name: the gold answer, in a box, the whole cell that it comes from, and nothing."""
    gold = prompt.answer
    found = [] if gold is None else [("the gold answer", gold), ("in \\boxed{}", f"\\boxed{{{gold}}}")]
    whole = next((prompt.row[name] for name in ("answer", "solution") if isinstance(prompt.row.get(name), str)), gold)
    found += [("its worked solution", str(whole))] if gold is not None and whole != gold else []
    return [*found, ("nothing", "")]


def _show(prompt: Prompt, tried: Sequence[Tried], say: Callable[[str], None]) -> None:
    say("")
    say(f"prompt {prompt.uid}, {len(prompt.ids)} tokens; columns {', '.join(map(str, prompt.row)) or 'none'}")
    for line in shorten(prompt.text, CHARACTERS).split("\n"):
        say(f"  | {line}")
    say(shown_ids(prompt.ids))
    say(f"  gold answer: {'none' if prompt.answer is None else shorten(prompt.answer, CHARACTERS)}")
    for one in tried:
        say(f"  reward of {clean(str(one))}")


def _verdict(config: RunConfig, prompts: Sequence[Prompt], tried: Sequence[Sequence[Tried]]) -> list[str]:
    """What the reward said on the whole. A gold answer that gets no more than nothing is worth a look."""
    lines, blind = list[str](), list[str]()
    for name in dict.fromkeys(one.name for answers in tried for one in answers):
        rewards = [one.scored.reward for answers in tried for one in answers if one.name == name]
        given = [reward for reward in rewards if reward is not None]
        mean = f"{sum(given) / len(given):.3f}" if given else "none"
        failed = f", {len(rewards) - len(given)} without a reward" if len(given) < len(rewards) else ""
        lines.append(f"reward of {name}: mean {mean} over {len(given)} prompts{failed}")
    for prompt, answers in zip(prompts, tried, strict=True):
        *told, nothing = [one.scored.reward for one in answers]
        given = [reward for reward in told if reward is not None]
        if given and nothing is not None and max(given) <= nothing:
            blind.append(prompt.uid)
    if blind:
        more = f" and {len(blind) - 5} more" if len(blind) > 5 else ""
        lines.append(
            f"in no way of writing it does the gold answer get more than nothing: {', '.join(blind[:5])}{more}"
        )
    if config.reward.complete:
        lines.append(_no_function(config))
    return lines
