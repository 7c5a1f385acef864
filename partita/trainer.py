"""Two ways in from Python: `PPOTrainer(config).train(...)` and `train(model=..., task=..., reward=...)` for a notebook.

Left out: the loop itself (`loop`) and how a config becomes objects (`build`).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from partita.build import build, check_run, follow_run
from partita.ends import Told, hearing
from partita.extras import Extras
from partita.launch.ended import EARLY
from partita.launch.start import Asked, is_role, launch, launches, own_command
from partita.loop import train as train_loop
from partita.ops.ranks import Ranks, join_ranks
from partita.records import Group
from partita.report.records import StepRecord
from partita.report.sinks import read_metrics
from partita.rollout.named import workflow_of
from partita.rollout.workflow import Workflow
from partita.run import RunConfig, load_run_config
from partita.runfolder import begun_folder

QUICKSTART = Path(str(files("partita") / "quickstart.yaml"))
Filter = Callable[[dict[str, NDArray[np.float64]]], bool]


class PPOTrainer:
    """One training run from a validated config.

    rewards: Python functions that score responses, instead of the names in `reward.functions`. resume: a run folder to go
    on with; its last whole checkpoint is loaded when training starts. Rewards, workflow and filter must be there again
    then, by the same names.
    """

    def __init__(
        self, config: RunConfig, *, rewards: Sequence[Callable[..., Any]] = (), resume: str | Path | None = None
    ) -> None:
        self.config, self.rewards = config, tuple(rewards)
        self.resume = None if resume is None else Path(resume)

    def train(
        self,
        workflow: Workflow | Callable[..., Workflow] | str | None = None,
        dynamic_filter_fn: Filter | None = None,
        workflow_kwargs: Mapping[str, Any] | None = None,
    ) -> Path:
        """Train to the last step and return the run folder.

        workflow: how one sample comes about, in training and evaluation; the config's `rollout.workflow` if not given. A name as
        there (path/file.py:Name, package.module:Name), a class, or a workflow. workflow_kwargs: what a name or a class is called
        with; a name with plain values becomes part of the run's config, so that the command line can go on with the run.
        dynamic_filter_fn: gets `{"rewards": array}` of a group's raw task rewards and says whether to train on the group; groups
        it refuses are replaced (or not, with `dynamic_bs`). Raises ConfigError for a workflow that cannot be made.

        Where the config asks for several processes, this one starts the program that it runs itself in each of them, and waits:
        what comes before this call happens in all of them, and what comes after it in this one alone.
        """
        keep = None if dynamic_filter_fn is None else _group_filter(dynamic_filter_fn)
        config, made = _with_workflow(self.config, workflow, dict(workflow_kwargs or {}))
        extras = Extras(self.rewards, made, keep)
        if launches(config):
            return launch(self._asked(config, extras))
        told, resume, ranks = Told(), self.resume or begun_folder(), join_ranks()
        if not ranks.leads:
            _follow(config, ranks, told)

        async def whole_run() -> Path:
            with build(config, extras, resume, ranks) as run:
                run.ends.told = told
                await train_loop(run)
                told.heeded = run.early
                return run.folder

        with hearing(told):
            folder = run_async(whole_run())
        if told.heeded:
            raise SystemExit(EARLY)
        if is_role():  # what the program does with the result is done once, by the process that started this one
            raise SystemExit(0)
        return folder

    def _asked(self, config: RunConfig, extras: Extras) -> Asked:
        """This run, in several processes. Raises what `build` would raise in each of them, before any is started."""
        check_run(config, extras, self.resume)
        return Asked(config, "train", own_command(), self.resume, extras.names.resume_command)


def _follow(config: RunConfig, ranks: Ranks, told: Told) -> NoReturn:
    with hearing(told):  # rank 0 heeds it
        follow_run(config, ranks)
    raise SystemExit(0)


def train(
    model: str | None = None, task: str | None = None, reward: Callable[..., Any] | str | None = None,
    algorithm: str | None = None, **overrides: Any,
) -> TrainingResult:  # fmt: skip
    """Train in one call; what is not given is as in `examples/quickstart.yaml`.

    model: a name or folder. task: a built-in task, a data file or a dataset name. reward: a function of what it needs by
    name (`response`, `answer`, ...), or the name of one. overrides: config keys, with `__` for the dots:
    `actor__optimizer__lr=1e-5`. Raises ConfigError naming wrong keys.
    """
    named: dict[str, Any] = {"algorithm": algorithm, "actor.path": model, "train_dataset.path": task}
    if isinstance(reward, str):
        named["reward.functions"] = [reward]
    given = {name: value for name, value in named.items() if value is not None}
    given |= {name.replace("__", "."): value for name, value in overrides.items()}  # None among these is null
    # JSON is YAML, and the only spelling of a text that no backslash, quote or look-alike of a number can change
    assignments = [f"{name}={json.dumps(value, default=str, ensure_ascii=False)}" for name, value in given.items()]
    config = load_run_config([QUICKSTART], assignments).value
    folder = PPOTrainer(config, rewards=[reward] if callable(reward) else []).train()
    return TrainingResult(folder)


class TrainingResult:
    """Where a finished run lies and how it went."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def model(self) -> Path:
        """The trained model in Hugging Face format."""
        return self.folder / "export"

    @property
    def history(self) -> list[StepRecord]:
        """The metrics of every step."""
        return read_metrics(self.folder / "metrics.jsonl")

    def __repr__(self) -> str:
        rewards = [record.metrics["reward/mean"] for record in self.history if "reward/mean" in record.metrics]
        reached = f"reward {rewards[0]:.3f} -> {rewards[-1]:.3f}" if rewards else "no sample could be scored"
        return f"TrainingResult({self.folder}, {len(self.history)} steps, {reached})"


def run_async(coroutine: Coroutine[Any, Any, Path]) -> Path:
    """asyncio.run, also where a notebook's event loop is already running: then in a thread of its own.

    An interrupt from the keyboard then cancels the coroutine, waits for its end, and travels on.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Path]]] = Future()
    outcome: Future[Path] = Future()

    async def whole() -> Path:
        job = asyncio.ensure_future(coroutine)
        started.set_result((asyncio.get_running_loop(), job))
        return await job

    def work() -> None:
        try:
            outcome.set_result(asyncio.run(whole()))
        except BaseException as error:  # handed to the caller's thread below
            outcome.set_exception(error)

    threading.Thread(target=work, name="partita-train").start()
    try:
        return outcome.result()  # not a join: Python 3.11 takes a thread whose join was interrupted for one that ended
    except KeyboardInterrupt:
        if not outcome.done():
            loop, job = started.result()
            with suppress(RuntimeError):  # it ended just now and closed its loop
                loop.call_soon_threadsafe(job.cancel)
            wait([outcome])
        raise


def _with_workflow(
    config: RunConfig, workflow: Workflow | Callable[..., Workflow] | str | None, kwargs: dict[str, Any]
) -> tuple[RunConfig, Workflow | None]:
    """The config with the workflow that was named, or the workflow where a config cannot hold it."""
    if workflow is None and not kwargs:
        return config, None
    named = config.rollout.workflow if workflow is None else workflow
    if isinstance(named, str) and _is_plain(kwargs):
        return replace(config, rollout=replace(config.rollout, workflow=named, workflow_kwargs=kwargs)), None
    return config, workflow_of(named, kwargs)


def _is_plain(values: dict[str, Any]) -> bool:
    try:
        return json.loads(json.dumps(values)) == values
    except (TypeError, ValueError):
        return False


def _group_filter(accept: Filter) -> Callable[[Group], bool]:
    return lambda group: bool(accept({"rewards": np.array(group.rewards, dtype=np.float64)}))


__all__ = ["QUICKSTART", "PPOTrainer", "TrainingResult", "train"]
