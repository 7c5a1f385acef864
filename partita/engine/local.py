"""The built-in engine: continuous batching in this process, one pump thread that owns the model and the slots.

Callers put rounds of requests and weight updates into an inbox; the pump takes them between decode steps, in the order
in which they came, and resolves futures. Only the inbox is shared. Callbacks of futures run on the pump thread and must
not block.

Shapes: B live slots, V vocabulary.
Left out: the number of threads of torch, which belongs to the whole process.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from partita.engine.api import Completion, Request
from partita.engine.decoder import Decoder, SlotDecoder
from partita.engine.draft import Draft, draft_of
from partita.engine.plain import PlainDecoder
from partita.engine.random import check_draw, uniforms
from partita.engine.sampler import Knobs, sample
from partita.engine.scheduler import Scheduler
from partita.models.lean import LeanModel
from partita.models.packed import PackedModel
from partita.ops.threads import release_threads
from partita.records import StopReason

CLOSE_SECONDS = 10.0


@dataclass
class EngineStats:
    """Counts since the engine started, and where the pump spent its seconds; the rest it waited for requests.

    prompt_tokens: those that were computed, each distinct prompt of a group once. forward_seconds: of prefill and decode,
    what the model took; the rest went into sampling and bookkeeping. peak_slots: most live at once.
    """

    tokens: int = 0
    prompt_tokens: int = 0
    decode_steps: int = 0
    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0
    forward_seconds: float = 0.0
    publish_seconds: float = 0.0
    peak_slots: int = 0


@dataclass
class _Job:
    """A request on its way: its future and what was sampled so far."""

    draft: Draft
    future: Future[Completion]

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.draft.request.prompt_ids


@dataclass(frozen=True)
class _Update:
    weights: Iterable[tuple[str, Tensor]]
    version: int
    done: Future[None]


class LocalEngine:
    """An `Engine` over one model in this process."""

    def __init__(
        self,
        model: PackedModel | LeanModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        slots: int,
        context: int,
        prefill_tokens: int = 2048,
        version: int = 0,
    ) -> None:
        """`slots` completions at a time, each of at most `context` tokens with its prompt; `version` is today's."""
        self._model, self._context, self._version = model, context, version
        # Its own copy: a tokenizer whose padding another thread sets refuses to decode at that moment.
        self._tokenizer = copy.deepcopy(tokenizer)
        self._scheduler: Scheduler[_Job] = Scheduler(slots, prefill_tokens)
        if isinstance(model, PackedModel) and model.kind == "plain":
            self._decoder: Decoder = PlainDecoder(model)
        else:
            self._decoder = SlotDecoder(model, slots=slots, context=context, prefill_tokens=prefill_tokens)
        self._static = isinstance(self._decoder, PlainDecoder)
        self._stats = EngineStats()
        self._inbox: deque[list[_Job] | _Update] = deque()
        self._finished: deque[tuple[_Job, Completion]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._pump, name="partita-engine", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        """See `Engine`. The future of a request that cannot run (its prompt fills the context) holds a ValueError.

        Cancelling a future frees its slot. Raises RuntimeError when the engine is closed or has crashed.
        """
        futures, jobs = list[Future[Completion]](), list[_Job]()
        for request in requests:
            check_draw(request.draw)
            futures.append(Future())
            try:
                jobs.append(_Job(draft_of(request, self._context, self._tokenizer), futures[-1]))
            except ValueError as error:
                futures[-1].set_exception(error)
        self._post(jobs)
        return futures

    def publish(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `Engine`. Returns when the weights are in use; running completions go on, their keys and values anew.

        Raises what is wrong with the weights; the engine has crashed then, and says so to everybody who waits.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "publish was called from a future's callback, on the thread that would have to carry it out"
            )
        update = _Update(weights, version, Future())
        self._post(update)
        update.done.result()

    def close(self) -> None:
        """See `Engine`. Open futures resolve with what they have and stop reason "abort"."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                raise RuntimeError(f"the engine did not end within {CLOSE_SECONDS:.0f} s")

    def stats(self) -> EngineStats:
        """A copy of the counts so far."""
        return replace(self._stats)

    def _post(self, item: list[_Job] | _Update) -> None:
        with self._wake:
            if self._error is not None:
                raise RuntimeError("the engine has crashed, see the cause above") from self._error
            if self._closing:
                raise RuntimeError("the engine is closed")
            self._inbox.append(item)
            self._wake.notify()
        release_threads()  # the pump computes now; whoever handed this in has nothing to do but wait

    def _pump(self) -> None:
        """The thread's whole life. Takes rounds and updates; gives results; woken by `_post` and `close`."""
        try:
            with torch.inference_mode():
                while self._receive():
                    self._turn()
            self._abort()
        except BaseException as error:
            self._fail(error)

    def _receive(self) -> bool:
        """Take what is in the inbox, waiting when there is nothing to do; False when the engine is to end."""
        with self._wake:
            if not self._inbox and self._scheduler.idle:
                release_threads()
            self._wake.wait_for(lambda: self._closing or self._inbox or not self._scheduler.idle)
        while not self._closing and self._inbox:
            item = self._inbox[0]  # stays there until done, so that a crash reaches its futures
            if isinstance(item, _Update):
                self._update(item)
            else:
                self._scheduler.submit(item)
            self._inbox.popleft()
        return not self._closing

    def _update(self, update: _Update) -> None:
        began = time.perf_counter()
        self._model.load_weights(update.weights)
        self._version = update.version
        self._scheduler.forget_prefixes()
        # The last sampled token is not in the cache yet: the next step puts it there.
        self._decoder.refresh([[*job.prompt_ids, *job.draft.ids[:-1]] for job in self._scheduler.running])
        self._stats.publish_seconds += time.perf_counter() - began
        update.done.set_result(None)

    def _turn(self) -> None:
        """Start what fits, then one decode step for every live slot."""
        began = time.perf_counter()
        may_start = not (self._static and self._scheduler.running)  # static batches start when nothing is live
        while may_start and not self._closing and (admission := self._scheduler.admit()) is not None:
            self._stats.prompt_tokens += sum(map(len, admission.prefill))
            self._advance(admission.starts[0].first, self._forward(partial(self._decoder.start, admission)))
        prefilled = time.perf_counter()
        self._stats.prefill_seconds += prefilled - began
        jobs = self._scheduler.running
        if jobs and not self._closing:
            positions = [len(job.prompt_ids) + len(job.draft.ids) - 1 for job in jobs]
            ids = [job.draft.ids[-1] for job in jobs]
            self._advance(0, self._forward(partial(self._decoder.step, ids, positions)))
            self._stats.decode_steps += 1
            self._stats.decode_seconds += time.perf_counter() - prefilled
        self._deliver()

    def _forward(self, compute: Callable[[], Tensor]) -> Tensor:
        began = time.perf_counter()
        logits_BV = compute()
        if logits_BV.is_cuda:  # launched is not computed
            torch.cuda.synchronize(logits_BV.device)
        self._stats.forward_seconds += time.perf_counter() - began
        return logits_BV

    def _advance(self, first: int, logits_BV: Tensor) -> None:
        """Sample one token for the rows from `first` on and take out those that are finished."""
        jobs = self._scheduler.running[first:]
        self._stats.peak_slots = max(self._stats.peak_slots, first + len(jobs))
        self._stats.tokens += len(jobs)
        finished: list[int] = []
        for row, (job, (token, logprob)) in enumerate(zip(jobs, self._sample(jobs, logits_BV), strict=True), first):
            if not math.isfinite(logprob):
                drawn = job.draft.request.draw
                raise FloatingPointError(f"non-finite logits after {len(job.draft.ids)} tokens of {drawn}")
            reason = job.draft.add(int(token), logprob, self._version)
            if reason is not None:
                self._finish(job, reason)
            if reason is not None or job.future.cancelled():
                finished.append(row)
        if finished:
            self._decoder.retire(self._scheduler.retire(finished))

    def _sample(self, jobs: Sequence[_Job], logits_BV: Tensor) -> list[list[float]]:
        """(token, log-prob) per row, fetched from the device at once; float64 holds token ids exactly."""
        generated, requests = [len(job.draft.ids) for job in jobs], [job.draft.request for job in jobs]
        knobs = Knobs.of([one.sampling for one in requests], generated, logits_BV.shape[1], logits_BV.device)
        uniform_B = torch.from_numpy(uniforms([one.draw for one in requests], generated)).to(logits_BV.device)
        ids_B, logprobs_B = sample(logits_BV, uniform_B, knobs)
        return torch.stack([ids_B.double(), logprobs_B.double()], -1).tolist()

    def _finish(self, job: _Job, reason: StopReason) -> None:
        self._finished.append((job, job.draft.completion(self._tokenizer, reason)))

    def _deliver(self) -> None:
        """Resolve futures, last in a turn: whoever wakes up finds statistics and slots up to date."""
        while self._finished:
            job, completion = self._finished[0]
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(completion)
            self._finished.popleft()

    def _abort(self) -> None:
        for job in self._open():
            self._finish(job, "abort")
        self._deliver()
        for item in self._inbox:
            if isinstance(item, _Update):
                item.done.set_exception(RuntimeError("the engine was closed before it took these weights"))

    def _open(self) -> list[_Job]:
        waiting = [job for item in self._inbox if isinstance(item, list) for job in item]
        return [*(job for job, _ in self._finished), *self._scheduler.open, *waiting]

    def _fail(self, error: BaseException) -> None:
        """Hand the error to everybody who waits and to everybody who comes later."""
        with self._wake:
            self._error = error
        futures: list[Future[Completion] | Future[None]] = [job.future for job in self._open()]
        futures += [item.done for item in self._inbox if isinstance(item, _Update)]
        for future in futures:
            if not future.done() and future.set_running_or_notify_cancel():
                future.set_exception(error)
