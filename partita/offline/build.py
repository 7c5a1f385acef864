"""From a config of training on data to the objects of a run.

Left out: what happens in a step (`offline.run`), and what the keys mean (the sections).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from partita.build import ended_by
from partita.config import ConfigError, Loaded
from partita.config.errors import Problem
from partita.config.schema import plain
from partita.models.load import LoadedModel
from partita.models.lora import require_peft
from partita.models.packed import fingerprint
from partita.offline.config import DpoConfig, OfflineConfig, RmConfig, SftConfig
from partita.offline.explain import loss_text, reference_text
from partita.offline.models import know, load_model, make_team
from partita.offline.online import OwnPairs, own_pairs
from partita.offline.run import OfflineRun
from partita.offline.source import Rows, Source
from partita.ops.ranks import ALONE, Ranks
from partita.records import Row
from partita.report.reporter import Reporter, RunFacts
from partita.report.sinks import write_atomic
from partita.report.trackers import require_trackers
from partita.report.view import OFFLINE_COLUMNS, Headline
from partita.run_engine import follow_team
from partita.run_models import device_here, recompute
from partita.runfolder import (
    CONFIG,
    EXPORT,
    RunFolderError,
    check_start,
    new_folder,
    resume_point,
    told_how_to_go_on,
)
from partita.tasks.cursor import Cursor
from partita.tasks.offline_rows import (
    OfflineDataConfig,
    OfflineRows,
    Rendered,
    RenderedJudged,
    RenderedPair,
    load_comparisons,
    load_conversations,
    load_judgements,
)
from partita.tasks.turns import turns_of
from partita.train.checkpoint import read_state
from partita.train.offline import Item
from partita.train.offline_team import OfflineTeam
from partita.train.team import dismiss, follow


@dataclass(frozen=True)
class Data:
    """Items to learn from, items held out, and lines about both for the start."""

    items: tuple[Item, ...]
    held_out: tuple[Item, ...]
    notes: tuple[str, ...]


@contextmanager
def build(config: OfflineConfig, resume: Path | None = None, ranks: Ranks = ALONE) -> Iterator[OfflineRun]:
    """Everything of a run on data, for rank 0; closed in the end, also when it fails. The others `follow_run` meanwhile."""
    require_trackers(config.report.trackers)
    if config.actor.lora is not None:
        require_peft()
    newest = None if resume is None else resume_point(resume)
    device = device_here()
    with _opened(config, device, ranks) as (loaded, data, source):
        state, started = read_state(newest) if newest else None, fingerprint(loaded.model)
        if state:
            if config.actor.lora is not None or _asks_its_start(config):
                check_start(state, started, config.actor.path)
            _go_on(source, state, newest)
        folder, settings = resume or new_folder(config, config.command), plain(config)
        told = Loaded(config, settings, {}).to_yaml().encode()
        if resume is None:  # before a reference is asked about all rows: a kill meanwhile leaves a run that can go on
            write_atomic(folder / CONFIG, told)
        finished = state["step"] if state else 0
        steps = _total_steps(config, source, finished)
        title = f"{config.experiment_name}/{folder.name}"
        facts = RunFacts(folder, title, steps, settings, finished, _headline(config))
        reporter = Reporter(replace(config.report, save_samples_every=0, keep_batches=0), facts)  # there are none
        team = make_team(config, loaded, device, ranks)
        if isinstance(source, OwnPairs):
            follow_team(source.engine, team)
        know(config, team, (*data.items, *data.held_out), folder, reporter.console.note)
        if newest:
            team.load(newest)
        run = OfflineRun(
            config, folder, team, source, data.held_out, steps, reporter, _export(config, team, data),
            _next(config, folder, steps), started,
        )  # fmt: skip
        if state:
            run.load_state_dict(state)
        with told_how_to_go_on(folder, run.go_on, reporter), ended_by(reporter.close):
            if resume is not None:
                write_atomic(folder / CONFIG, told)
            run.reporter.start(_facts(run, loaded, data))
            yield run
            dismiss(ranks)


def follow_run(config: OfflineConfig, ranks: Ranks) -> None:
    """What a rank that does not lead does in a run on data: the same model, and with it what rank 0 says. Raises RankLost where
    rank 0 ended with an error.
    """
    device = device_here()
    follow(make_team(config, load_model(config, device, ranks), device, ranks))


def _asks_its_start(config: OfflineConfig) -> bool:
    """Whether the model that training started from is asked in every step; a reference that was asked before is on disk."""
    if not isinstance(config, DpoConfig) or not reference_text(config):
        return False
    return config.ref.log_probs != "precomputed" and config.ref.path in (None, config.actor.path)


def _go_on(source: Source, state: Mapping[str, Any], newest: Path | None) -> None:
    """Before any file of the run is touched: a checkpoint that does not fit leaves the folder as it was."""
    try:
        source.load_state_dict(state["data"])
    except ValueError as error:
        raise RunFolderError(f"{newest} cannot be continued with this config: {error}") from error


@contextmanager
def _opened(config: OfflineConfig, device: torch.device, ranks: Ranks) -> Iterator[tuple[LoadedModel, Data, Source]]:
    """The model that is trained, what is held out, and where a step's items come from."""
    if isinstance(config, DpoConfig) and config.online is not None:
        with own_pairs(config, ranks) as (own, made, notes):
            if config.actor.gradient_checkpointing:
                recompute(made.loaded.model)
            held = Data((), (), ())
            if config.valid_dataset is not None:
                held = _items(config, made.loaded, config.valid_dataset, "valid_dataset")
            yield made.loaded, Data((), held.items[: config.evaluator.size], (*notes, *held.notes)), own
        return
    loaded = load_model(config, device, ranks)
    data, section = load_data(config, loaded), config.train_dataset
    limit = config.total_train_epochs if config.total_train_steps is None else None
    cursor = Cursor(data.items, config.seed, section.shuffle)
    yield loaded, data, Rows(data.items, cursor, section.batch_size, limit)


def load_data(config: OfflineConfig, loaded: LoadedModel) -> Data:
    """Rows as items, those that are held out apart."""
    made = _items(config, loaded, config.train_dataset, "train_dataset")
    if config.valid_dataset is None:
        held, notes = made.held_out, made.notes
    else:
        valid = _items(config, loaded, config.valid_dataset, "valid_dataset")
        held = tuple(replace(item, uid=f"valid {item.uid}") for item in valid.items)  # numbered like the others
        notes = (*made.notes, *(f"held out: {line}" for line in valid.notes))
    return Data(made.items, held[: config.evaluator.size], notes)


def _items(config: OfflineConfig, loaded: LoadedModel, section: OfflineDataConfig, name: str) -> Data:
    turns = turns_of(loaded.tokenizer, loaded.stop_ids, section.chat_template, section.chat_template_kwargs)
    given: dict[str, Any] = {"context": loaded.context, "seed": config.seed, "section": name}
    if isinstance(config, SftConfig):
        return _data(load_conversations(section, turns, **given), _conversations)
    if isinstance(config, DpoConfig) and config.loss.type == "kto":
        limit = min(loaded.context, section.max_length or loaded.context)
        judged = load_judgements(section, turns, **given)
        if name == "train_dataset" and len({row.group for row in judged.rows}) == 1:
            raise ConfigError([Problem("loss.type", "kto needs answers to at least two questions, these rows ask one")])
        return _data(judged, lambda rows: _judged(rows, limit))
    return _data(load_comparisons(section, turns, **given), _pairs)


def _data(found: OfflineRows[Any], items: Callable[[Sequence[Any]], list[Item]]) -> Data:
    return Data(tuple(items(found.rows)), tuple(items(found.held_out)), found.notes)


def _conversations(rows: Sequence[Rendered]) -> list[Item]:
    return [Item(row.uid, (row.rows,)) for row in rows]


def _pairs(rows: Sequence[RenderedPair]) -> list[Item]:
    return [Item(row.uid, (row.chosen_rows, row.rejected_rows), margin=row.margin) for row in rows]


def _judged(rows: Sequence[RenderedJudged], limit: int) -> list[Item]:
    """Beside each answer its question with the answer to the next other question with which it fits into `limit` tokens;
    nothing where none does.
    """
    found = list[Item]()
    for at, row in enumerate(rows):
        others = (rows[(at + step) % len(rows)] for step in range(1, len(rows)))
        made = (_crossed(row, other) for other in others if other.group != row.group)
        beside = next(((one,) for one in made if len(one[0].ids) <= limit), ())
        found.append(Item(row.uid, (row.rows,), beside, good=row.good))
    return found


def _crossed(asked: RenderedJudged, answered: RenderedJudged) -> tuple[Row, ...]:
    """The last answer of one after the question of the other."""
    row, other = asked.rows[-1], answered.rows[-1]
    start, other_start = row.trained.index(True), other.trained.index(True)
    ids = [*row.ids[:start], *other.ids[other_start:]]
    trained = [*row.trained[:start], *other.trained[other_start:]]
    return (Row(ids, trained, [0.0] * len(ids), [-1] * len(ids)),)


def _total_steps(config: OfflineConfig, source: Source, finished: int) -> int:
    """Of whole epochs the steps that are finished, and as many as what is left needs."""
    if config.total_train_steps is not None:
        return config.total_train_steps
    assert config.total_train_epochs is not None, "the config checks that one of the two is set"
    left = config.total_train_epochs * source.size - source.taken
    return finished + math.ceil(max(left, 0) / source.batch_size)


def _export(config: OfflineConfig, team: OfflineTeam, data: Data) -> Callable[[Path], None]:
    """What writes the trained model: a language model, or a reward model with where its scores lie."""
    scored = (data.held_out or data.items) if isinstance(config, RmConfig) else ()
    return partial(team.export, scored=scored)


def _headline(config: OfflineConfig) -> Headline:
    if isinstance(config, SftConfig):
        return Headline("loss", "loss", "loss", OFFLINE_COLUMNS)
    if isinstance(config, DpoConfig) and config.online is not None:
        return Headline(columns=OFFLINE_COLUMNS)
    metric = "preference/accuracy" if isinstance(config, DpoConfig) else "reward_model/accuracy"
    judged = isinstance(config, DpoConfig) and config.loss.type == "kto"
    return Headline(metric, f"{'answers' if judged else 'pairs'} ranked rightly", "accuracy", OFFLINE_COLUMNS)


def _next(config: OfflineConfig, folder: Path, steps: int) -> dict[str, str]:
    export, kind = folder / EXPORT, config.command
    counted = config.total_train_steps is not None
    more = f"total_train_steps={2 * steps}" if counted else f"total_train_epochs={(config.total_train_epochs or 0) + 1}"
    again = {"go on": f"partita {kind} --resume {quote(str(folder))} {more}"}
    if kind == "rm":
        return {"use": f"partita train FILE reward.model={export}", **again}
    return {
        "try": f'partita generate {export} --prompt "..."',
        "train on": f"partita train grpo actor.path={export}",
        **again,
    }


def _facts(run: OfflineRun, loaded: LoadedModel, data: Data) -> dict[str, str]:
    """What the console says before the first step."""
    config, learner = run.config, run.learner
    trained = sum(p.numel() for p in learner.model.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in learner.model.parameters())
    asked = "prompts" if isinstance(run.source, OwnPairs) else "items"
    word = str(learner.stepper.compute_dtype).removeprefix("torch.")
    facts = {
        "model": f"{config.actor.path}, {trained / 1e6:.1f} M of {whole / 1e6:.1f} M parameters trained, {loaded.path_kind}",
        "loss": loss_text(config),
        "batch": f"{run.source.batch_size} of {run.source.size} {asked}, {len(data.held_out)} held out",
        "precision": f"{word} on float32 weights, on {loaded.model.device}",
        "reference": reference_text(config) if learner.reference is not None else "",
        "data": "; ".join((*data.notes, *loaded.notes)),
    }
    return {name: text for name, text in facts.items() if text}
