"""The config sections `train_dataset` and `valid_dataset`: where rows come from and how they become prompts.

Left out: the work itself; see `tasks.dataset` and `tasks.prompt`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from partita.config.schema import key, key_factory

BOXED_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class ColumnsConfig:
    """Which columns of a row to read. A dot reaches into a column: `reward_model.ground_truth`."""

    prompt: str | None = key(
        None,
        "the prompt, text or a list of messages; null takes the one of messages, prompt, question, problem that exists",
    )
    answer: str | None = key("answer", "the gold answer; null for data whose rewards need none")


@dataclass(frozen=True)
class DatasetConfig:
    """Rows to train or evaluate on."""

    path: str | None = key(
        None,
        "a .jsonl, .json, .csv or .parquet file, a folder of them, a built-in task (largest, addition, multiplication, "
        "letters, subtraction_stories), your own task as path/file.py:task or package.module:task, or a data set name "
        "on the hub",
    )
    type: Literal["rl"] = key("rl", "rl: prompts to sample from and, mostly, gold answers to judge by")
    split: str = key("train", "which split of a task, folder or hub data set")
    subset: str | None = key(None, "which configuration of a hub data set that has several (main for openai/gsm8k)")
    batch_size: int = key(8, "prompts per train step", ge=1)
    size: int | None = key(
        None, "rows to use: a task makes this many, of other data the first ones; null for all", ge=1
    )
    shuffle: bool = key(True, "a new order in every epoch, set by the run's seed")
    columns: ColumnsConfig = key_factory(ColumnsConfig, "which columns to read")
    answer_format: Literal["auto", "gsm8k", "plain"] = key(
        "auto",
        "gsm8k: the gold answer is what follows the last ####, commas removed; plain: the column as it is; "
        "auto: gsm8k when any row has a ####",
    )
    instruction: str | None = key(
        "auto",
        f"text put on a new line after the user's words; auto: {BOXED_INSTRUCTION!r} with gsm8k answers, else nothing",
    )
    system: str | None = key(None, "a system message before every prompt")
    dedup: bool = key(False, "keep only the first of rows with the same prompt and answer")
    on_bad_row: Literal["error", "drop"] = key(
        "error", "a row without a usable prompt or answer: stop, or leave out and count"
    )
    max_length: int | None = key(
        None, "longest prompt in tokens, chat template included; null for as long as the context allows", ge=1
    )
    too_long: Literal["error", "drop"] = key(
        "drop", "a longer prompt: stop, or leave out and count; prompts are never cut"
    )
    chat_template: str = key(
        "auto", "auto: the tokenizer's own; none: the bare text of each prompt; otherwise the path of a Jinja file"
    )
    chat_template_kwargs: dict[str, Any] = key_factory(
        dict, "further values for the template, as {enable_thinking: false} where a model's template knows it"
    )

    def __post_init__(self) -> None:
        if self.answer_format == "gsm8k" and self.columns.answer is None:
            raise ValueError("answer_format=gsm8k needs an answer column, and columns.answer is null")
