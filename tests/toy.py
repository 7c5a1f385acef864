"""Fakes at the edges, never of our own maths: a policy that is a table of next-token logits, and an engine that samples from it."""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from partita.engine.api import Completion, Request
from partita.engine.random import uniforms
from partita.models.packed import Against, Streams
from partita.ops.packing import Packed
from partita.records import Prompt, StopReason
from partita.tasks.reward import Scored

VOCABULARY = 8
EOS = 7


class TableModel(nn.Module):
    """logits of the next token = table[current token]; speaks the language of `models.packed.PackedModel`."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(
        self, packed: Packed, *, temperature: float, entropy: bool = False, against: Against | None = None
    ) -> Streams:
        def log_softmax(model: "TableModel") -> Tensor:
            return (model.table[packed.ids_N[packed.source_T]] / temperature).log_softmax(-1)

        log_TV, ref_T, old_T = log_softmax(self), None, None
        if against is not None and against.reference is not None:
            ref_T = (log_TV.exp() * (log_TV - log_softmax(against.reference).detach())).sum(-1)
        if against is not None and against.old is not None:
            old_TV = log_softmax(against.old).detach()
            old_T = (old_TV.exp() * (old_TV - log_TV)).sum(-1)
        chosen_T = log_TV.gather(1, packed.target_T[:, None])[:, 0]
        return Streams(chosen_T, -(log_TV.exp() * log_TV).sum(-1) if entropy else None, ref_T, old_T)


class TableCritic(nn.Module):
    """The worth of a state is that of its last token."""

    def __init__(self) -> None:
        super().__init__()
        self.worth = nn.Parameter(torch.zeros(VOCABULARY, dtype=torch.float64))

    def values(self, packed: Packed, *, ends: bool = False) -> tuple[Tensor, Tensor | None]:
        after_S = self.worth[packed.ids_N[packed.end_S]] if ends else None
        return self.worth[packed.ids_N[packed.source_T]], after_S


class TableEngine:
    """Samples from its own copy of the table, one uniform per token, and remembers every round it was given."""

    def __init__(self) -> None:
        self.table = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
        self.version = 0
        self.rounds: list[list[Request]] = []

    def submit(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        self.rounds.append(list(requests))
        futures: list[Future[Completion]] = []
        for request in requests:
            future: Future[Completion] = Future()
            future.set_result(self._sample(request))
            futures.append(future)
        return futures

    def follow(self, **next_of: int) -> None:
        """Make the policy certain: `follow(t0=1)` writes 1 after 0."""
        for name, after in next_of.items():
            self.table[int(name.removeprefix("t")), after] = 100.0

    def _sample(self, request: Request) -> Completion:
        ids, logprobs, last = [], [], request.prompt_ids[-1]
        stop: StopReason = "length"
        for t in range(request.sampling.max_new_tokens):
            u = uniforms([request.draw], [t])[0]
            log_V = (self.table[last] / (request.sampling.temperature or 1.0)).log_softmax(-1)
            drawn = (
                torch.searchsorted(log_V.exp().cumsum(0), float(u)) if request.sampling.temperature else log_V.argmax()
            )
            last = min(int(drawn), VOCABULARY - 1)
            ids.append(last)
            logprobs.append(float(log_V[last]))
            if last == EOS:
                stop = "stop"
                break
        text = " ".join(map(str, ids))
        return Completion(tuple(ids), tuple(logprobs), (self.version,) * len(ids), stop, text)

    def publish(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.table = dict(weights)["table"].detach().clone()
        self.version = version

    def close(self) -> None:
        pass


@dataclass
class CountedPrompts:
    """Prompt number i is the single token i modulo 4."""

    position: int = 0

    def next(self) -> Prompt:
        self.position += 1
        token = self.position % 4
        return Prompt(f"p{self.position}", (token,), str(token), {"want": str(token)})

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class FirstToken:
    """Reward 1 when the first sampled token is 3. `delay` makes scoring of some samples slow."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay

    async def score(self, prompt: Prompt, text: str, ids: Sequence[int], stop_reason: StopReason) -> Scored:
        await asyncio.sleep(self.delay * (ids[0] % 3))
        value = float(ids[0] == 3)
        return Scored(value, {"first": value}, "ok", "")
