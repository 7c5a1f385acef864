"""The config sections `train_dataset` and `valid_dataset`: where rows come from and how they become prompts.

Left out: the work itself; see `tasks.dataset`, `tasks.prompt` and `tasks.order`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from partita.config.schema import key, key_factory

BOXED_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class ColumnsConfig:
    """Which columns of a row to read. A dot reaches into a column: `reward_model.ground_truth`."""

    prompt: str | None = key(
        None,
        "the prompt, text or a list of messages; null takes the one of messages, prompt, question, problem that exists, "
        "else of conversations (ShareGPT), instruction (Alpaca), chosen (preferences)",
    )
    answer: str | None = key(
        "auto",
        "the gold answer; auto: answer, else the one of reward_model.ground_truth, ground_truth, solution that exists; null "
        "for data whose rewards need none",
    )


@dataclass(frozen=True)
class SourceConfig:
    """Where rows come from, and how each of them is read as a question with its gold answer."""

    path: str | None = key(
        None,
        "a .jsonl, .json, .csv, .tsv or .parquet file (text also packed, as .jsonl.gz), a folder of them, a built-in task "
        "(largest, addition, multiplication, letters, subtraction_stories), one of reasoning-gym as reasoning_gym/gcd, your "
        "own as path/file.py:task or package.module:task, or a data set name on the hub",
    )
    split: str = key("train", "which split of a task, folder or hub data set")
    subset: str | None = key(None, "which configuration of a hub data set that has several (main for openai/gsm8k)")
    size: int | None = key(
        None, "rows to use: a task makes this many, of other data the first ones; null for all", ge=1
    )
    columns: ColumnsConfig = key_factory(ColumnsConfig, "which columns to read")
    template: str | None = key(
        None,
        "the user's words as a text with columns in braces, as Make {target} out of {nums}. in place of columns.prompt; {{name}} "
        "is {name} itself, other braces are left alone",
    )
    answer_format: Literal["auto", "gsm8k", "boxed", "plain"] = key(
        "auto",
        "gsm8k: the gold answer is what follows the last ####, commas removed; boxed: what the last \\boxed{} holds; plain: "
        "the column as it is; auto: gsm8k when any row has a ####, else boxed when any has a \\boxed, else plain",
    )
    last_answer: Literal["error", "drop"] = key(
        "error",
        "a conversation that ends with the assistant's answer: stop, or leave that answer out, so that it is asked for anew",
    )
    instruction: str | None = key(
        "auto",
        f"text put on a new line after the user's words; auto: {BOXED_INSTRUCTION!r} with gsm8k and boxed answers, else nothing",
    )
    system: str | None = key(None, "a system message before every prompt")
    examples: str | list[dict[str, Any]] | None = key(
        None,
        "rows that are shown before every prompt as earlier turns, a file of them or the rows themselves: read like the others, "
        "and answered by their column response, else by the cell of their gold answer as it stands",
    )
    templated: Literal["auto", "ignore"] = key(
        "auto",
        "prompts that bring the markers of a chat template along. auto: used as they are where the markers are this model's, else "
        "taken out of them and shown in this model's template; ignore: they are the user's words like any others",
    )
    where: dict[str, Any] = key_factory(
        dict,
        "which rows to use, by column: {level: 3}, {level: [1, 2]}, {level: {min: 1, max: 3}}; all must hold",
    )
    dedup: bool = key(False, "keep only the first of rows with the same prompt and answer")
    on_bad_row: Literal["error", "skip"] = key(
        "error", "a row that cannot be read, or without a usable prompt or answer: stop, or leave out and count"
    )

    def __post_init__(self) -> None:
        if self.answer_format in ("gsm8k", "boxed") and self.columns.answer is None:
            raise ValueError(f"answer_format={self.answer_format} needs an answer column, and columns.answer is null")
        if self.template is not None and self.columns.prompt is not None:
            raise ValueError(f"template and columns.prompt={self.columns.prompt}: prompts come from one of the two")


@dataclass(frozen=True)
class MixedSourceConfig(SourceConfig):
    """One of several sources, read in its own way."""

    weight: float = key(1.0, "its share of the prompts that are drawn, over the sum of all weights", gt=0)


@dataclass(frozen=True)
class PassRatesConfig:
    """How often each prompt was answered right before, from files that runs have written."""

    files: list[str] = key_factory(list, "pass_rates.jsonl of run folders; counts of the same prompt are added up")
    min: float | None = key(None, "leave out prompts that were right less often, 0 to 1", ge=0, le=1)
    max: float | None = key(None, "leave out prompts that were right more often, 0 to 1", ge=0, le=1)
    unseen: Literal["keep", "skip"] = key("keep", "prompts that no file has counted")

    def __post_init__(self) -> None:
        if not self.files and (self.min is not None or self.max is not None or self.unseen != "keep"):
            raise ValueError("files is empty: name the pass_rates.jsonl of a run that has counted these prompts")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}: no prompt is left")


@dataclass(frozen=True)
class CurriculumConfig:
    """An order of difficulty in place of a random one."""

    by: str = key(
        "pass_rate",
        "pass_rate: how often a prompt was right, high is easy, from pass_rates.files; else a column of numbers, low is easy",
    )
    order: Literal["easy_first", "hard_first"] = key(
        "easy_first", "in every epoch; equals among each other as by shuffle"
    )
    epochs: int | None = key(None, "only in the first so many epochs; null for all", ge=1)


@dataclass(frozen=True)
class DatasetConfig(SourceConfig):
    """Rows to train or evaluate on."""

    type: Literal["rl"] = key("rl", "rl: prompts to sample from and, mostly, gold answers to judge by")
    batch_size: int = key(8, "prompts per train step", ge=1)
    shuffle: bool = key(True, "a new order in every epoch, set by the run's seed")
    mix: dict[str, MixedSourceConfig] = key_factory(
        dict, "several sources by name, in place of path and the other keys of a single one"
    )
    held_out: float = key(
        0.0,
        "share of the questions that is held out, by a hash of each, where there is no valid_dataset: no row changes sides when "
        "others are added",
        ge=0,
        lt=1,
    )
    streaming: bool = key(
        False, "read .jsonl, .parquet or a hub data set as it goes, for what does not fit into memory"
    )
    buffer_rows: int = key(1000, "streaming: rows that are read, shuffled and rendered at once", ge=1)
    pass_rates: PassRatesConfig = key_factory(PassRatesConfig, "prompts chosen by how often they were right before")
    curriculum: CurriculumConfig | None = key(None, "prompts in an order of difficulty; null for none")
    min_length: int | None = key(None, "shortest prompt in tokens; shorter ones are left out and counted", ge=1)
    max_length: int | None = key(
        None, "longest prompt in tokens, chat template included; null for as long as the context allows", ge=1
    )
    too_long: Literal["error", "skip"] = key(
        "skip", "a longer prompt: stop, or leave out and count; prompts are never cut"
    )
    prefill: str | None = key(
        None, "the assistant's first words; they belong to the prompt: sampled from, not trained, not in the response"
    )
    chat_template: str = key(
        "auto", "auto: the tokenizer's own; none: the bare text of each prompt; otherwise the path of a Jinja file"
    )
    chat_template_kwargs: dict[str, Any] = key_factory(
        dict, "further values for the template, as {enable_thinking: false} where a model's template knows it"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mix:
            single = [one.name for one in fields(SourceConfig) if getattr(self, one.name) != _default(one.name)]
            if single:
                raise ValueError(f"{', '.join(single)} beside mix: set it in each source, as mix.NAME.{single[0]}")
        rates = self.curriculum is not None and self.curriculum.by == "pass_rate"
        if rates and not self.pass_rates.files:
            raise ValueError("curriculum.by=pass_rate needs pass_rates.files")
        if self.streaming:
            self._check_streaming()

    def source(self, name: str) -> DatasetConfig:
        """The section as it would be with one source of `mix` alone."""
        own = {one.name: getattr(self.mix[name], one.name) for one in fields(SourceConfig)}
        return replace(self, mix={}, **own)

    def read_alike(self, **changed: Any) -> DatasetConfig:
        """The section for other rows, which are read and shown in the same way: without all that chooses or orders the rows
        that are trained on.
        """
        plain: dict[str, Any] = {
            "mix": {}, "where": {}, "size": None, "held_out": 0.0, "streaming": False, "curriculum": None,
            "pass_rates": PassRatesConfig(), "shuffle": False,
        }  # fmt: skip
        return replace(self, **(plain | changed))

    def _check_streaming(self) -> None:
        several = [self, *self.mix.values()]
        whole = {
            "curriculum": self.curriculum is not None,
            "size": any(one.size is not None for one in several),
            "dedup": any(one.dedup for one in several),
        }
        if named := [name for name, there in whole.items() if there]:
            raise ValueError(f"streaming with {', '.join(named)}: that needs all rows at once; drop one of the two")


def _default(name: str) -> Any:
    return getattr(SourceConfig(), name)
