"""The commands that sample a model without training it: `partita generate` and `partita eval`.

Left out: sampling and measuring (`player`), and what is shown of it (`evals.show`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from partita.cli_load import check_reward, check_sampled, load_config, write_file
from partita.config import ConfigError
from partita.config.errors import Problem
from partita.evals.config import asked_for
from partita.evals.show import Evaluated, comparisons, document, headline, lines_of, rows_of
from partita.player import complete
from partita.player import evaluate as evaluate_model
from partita.report.sinks import strict_json
from partita.report.text import clean
from partita.run import RunConfig
from partita.runfolder import RunFolderError, run_config_of


def generate(
    model: Annotated[str, typer.Argument(help="a run folder, a model folder or a name")],
    prompt: Annotated[str, typer.Option(help="what the user says")],
    samples: Annotated[int, typer.Option(min=1)] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="config key=value")] = None,
) -> None:
    """Print completions of one prompt."""
    words = [f"gconfig.max_new_tokens={max_new_tokens}", "actor.max_new_tokens=null", f"seed={seed}"]
    loaded = load_config("", [*words, *(overrides or [])], model)
    for text in complete(loaded.value, prompt, samples, temperature):
        typer.echo(clean(text) + ("\n" if samples > 1 else ""))


def evaluate(
    model: Annotated[str, typer.Argument(help="a run folder, a model folder or a name")],
    other: Annotated[str | None, typer.Argument(help="another one, to compare with on the same prompts")] = None,
    task: Annotated[
        str | None, typer.Option(help="built-in task, data file or dataset; a run folder has its own")
    ] = None,
    split: Annotated[str, typer.Option(help="which split of --task")] = "test",
    reward: Annotated[str | None, typer.Option(help="reward function; the task's own if not given")] = None,
    n: Annotated[int, typer.Option(min=1, help="held-out prompts")] = 200,
    samples: Annotated[
        int | None, typer.Option(min=1, help="samples per prompt; the largest k, else the run's")
    ] = None,
    k: Annotated[str | None, typer.Option(help="of pass@k and maj@k, as 1,4,16")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="default: the run's; 0 (greedy) is for 1 sample")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="default: the run's")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="default: the run's")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="of the samples; default: the run's")] = None,
    by: Annotated[str | None, typer.Option(help="a column, to tell of each of its values")] = None,
    correct_by: Annotated[str | None, typer.Option(help="the part of the reward that says what is right")] = None,
    answer_of: Annotated[
        str | None, typer.Option(help="what votes in maj@k: math, number, choice, text, ... or path/file.py:function")
    ] = None,
    compare: Annotated[bool, typer.Option(help="also the model the run started from, and the difference")] = False,
    json: Annotated[Path | None, typer.Option(help="write all figures to this file, each prompt's too")] = None,
    save: Annotated[Path | None, typer.Option(help="write all samples to this file, a line of JSON each")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="config key=value")] = None,
) -> None:
    """Reward, avg@k, pass@k and maj@k on held-out prompts, with 95 % intervals; of two models also how they differ."""
    if absent := [file for file in (json, save) if file is not None and not file.parent.is_dir()]:
        raise RunFolderError(f"{absent[0]} cannot be written: there is no folder {absent[0].parent}")
    config = _eval_config(model, task, split, reward, overrides or [])
    beside = _beside(config, model, other, compare)
    given = {
        "n_prompts": n, "n_samples": samples, "k": k, "temperature": temperature,
        "top_p": top_p, "max_new_tokens": max_new_tokens, "by": by, "correct_by": correct_by, "answer_of": answer_of,
    }  # fmt: skip
    settings, found = asked_for(config.evaluator, given), list[Evaluated]()
    for one in [config, *beside]:
        evaluated, asked = evaluate_model(one, settings, seed)
        typer.echo(clean(headline(evaluated, asked)))
        found.append(evaluated)
        if save is not None:  # before anything can go wrong with a second model
            write_file(save, "".join(strict_json(row) + "\n" for row in rows_of(found, asked.measures)))
    compared = comparisons(found)
    typer.echo(clean("\n".join(lines_of(found, compared, asked.measures))))
    for note in dict.fromkeys(note for one in found for note in one.summary.notes):
        typer.echo(f"warning: {note}", err=True)
    if json is not None:
        write_file(json, strict_json(document(found, compared, asked)) + "\n")


def _eval_config(model: str, task: str | None, split: str, reward: str | None, overrides: list[str]) -> RunConfig:
    """The config of the model's run, or the quickstart's, with the data and the reward of the command line."""
    check_reward(Path(model), reward)
    only = (
        [f"reward.functions=[{reward}]", "reward.weights=null", "reward.model=null", "~reward.options"]
        if reward
        else []
    )
    config = load_config("", [*overrides, *only], model).value
    if task is None:
        return config
    # read as the training rows are: columns, template, instruction
    alike = config.train_dataset.read_alike(path=task, split=split)
    train = replace(config.train_dataset, held_out=0.0)  # whose rows are not asked for
    return replace(config, train_dataset=train, valid_dataset=alike)


def _beside(config: RunConfig, model: str, other: str | None, compare: bool) -> list[RunConfig]:
    """The config of what the model is compared with: the same prompts, samples and rewards."""
    if compare and other is not None:
        raise ConfigError(
            [Problem("--compare", f"is with the model that the run started from, and {other} is given as well")]
        )
    if compare:
        check_sampled(Path(model))
    elif other is None:
        return []
    start = run_config_of(Path(model), []).value if other is None else load_config("", [], other).value
    actor = replace(config.actor, path=start.actor.path)
    return [replace(config, actor=actor, tokenizer_path=start.tokenizer_path)]
