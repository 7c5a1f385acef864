"""What a process holds in memory, part by part, and in which moment of a train step; the largest moment is what must fit.

Bytes follow from counts of parameters and tokens and from what the code keeps: docs/models-in-memory.md has them by model. A
moment is the sum of the parts that exist in it.

Shapes: D hidden width, V vocabulary, M inner width of an MLP, H query heads, K key/value heads, W head width.
Left out: how many tokens there are (`plan.batch`), and what room there is (`plan.room`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from partita.engine.cache import stretch
from partita.engine.decoder import HELD_FROM
from partita.models.blocks import KEPT, LANES
from partita.ops.linear_head import CHUNK_BYTES
from partita.plan.sizes import Sizes

Moment = Literal["start", "sample", "score", "critic learns", "critic's step", "learn", "step", "publish"]
ALWAYS: tuple[Moment, ...] = ("start", "sample", "score", "critic learns", "critic's step", "learn", "step", "publish")
WIDE = 4
"""Bytes of a float32 number: master weights, gradients, moments."""
FREED, GRADIENTS, MERGED = 0.2, 0.4, 0.5
"""What stays with a process of a pass's arrays, of gradients where they are more, and of adapters that were merged, after they were
freed: in pieces that the next pass cannot use, for its micro-batch has another length. Measured by `benchmarks/plan.py`."""
SCATTERED = 1.5
"""What ranks on CPUs keep of gathered weights, in all that a pass gathers: smaller arrays take a layer's place before the next one
is gathered, forward and backward. Of layers gathered in float32, 2 where a pass has few tokens, 1.2 where activations use the holes
again; not compared with a measurement since layers are gathered in the precision of products."""
COPIES = 3
"""Arrays of float32 logits that are alive while tokens are drawn."""


@dataclass(frozen=True)
class Part:
    """Bytes of one thing, and the moments in which it is there. leaves: the share of it that a process on a CPU keeps when it is
    freed, and cannot use again.
    """

    name: str
    bytes: float
    moments: tuple[Moment, ...] = ALWAYS
    leaves: float = 0.0


@dataclass(frozen=True)
class Memory:
    """What one process holds."""

    parts: tuple[Part, ...]

    def at(self, moment: Moment) -> float:
        """Bytes in a moment."""
        return sum(part.bytes for part in self.parts if moment in part.moments)

    @property
    def peak_at(self) -> Moment:
        """The moment with most; of equals the first."""
        return max(ALWAYS, key=self.at)

    @property
    def peak(self) -> float:
        """Bytes in that moment."""
        return self.at(self.peak_at)


@dataclass(frozen=True)
class Shards:
    """How a model's weights lie on `ranks` ranks. keeps: a layer's gathered weights stay until its backward pass."""

    ranks: int = 1
    keeps: bool = False

    def of(self, bytes_: float) -> float:
        """A rank's part."""
        return bytes_ / self.ranks


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass. tokens: of its model input; trained: those with a log-prob; row: those of its longest row's
    input; width: bytes of a number in its products; steps: micro-batches of an optimizer step.
    """

    tokens: int
    trained: int
    row: int
    width: int
    checkpointing: bool = False
    micro_batches: int = 1


def weights_of(name: str, sizes: Sizes, shards: Shards, step: Moment) -> list[Part]:
    """A trained model at rest and between a backward pass and its optimizer step (Adam: Kingma and Ba 2015, algorithm 1)."""
    trained = shards.of(WIDE * sizes.trained)
    frozen = shards.of(WIDE * sizes.parameters) if sizes.adapters else 0.0
    return [
        Part(f"{name}: weights, float32", trained + frozen),
        Part(f"{name}: two moments", 2 * trained, ALWAYS[1:]),
        Part(f"{name}: gradients", trained, (step,), GRADIENTS),
    ]


def activation_bytes(sizes: Sizes, one: Pass) -> float:
    """What a forward pass keeps for its backward pass, without weights and logits.

    Of a layer of Llama's shape, a token keeps its residual before both norms (float32), both norms' results, queries, keys, values,
    their mixture, gate, up and their product. With checkpointing it keeps the residual, and one layer all of this. Of other
    families: c (9 D + 3 M) for numbers of c bytes, which is 34 D of Korthikanti et al. 2022 (arXiv:2205.05198, equation 1) in
    16 bits with M = 4 D and an MLP of two matrices.
    """
    layer = layer_bytes(sizes, one)
    kept = WIDE * sizes.hidden * sizes.layers + layer if one.checkpointing else layer * sizes.layers
    last = (WIDE + one.width) * sizes.hidden + 2 * WIDE * sizes.width  # the last norm, and the rotary angles
    return one.tokens * (kept + last)


def layer_bytes(sizes: Sizes, one: Pass) -> float:
    """What a forward pass keeps of a token in one layer, see `activation_bytes`."""
    hidden, queries, keys, c = sizes.hidden, sizes.queries * sizes.width, sizes.keys * sizes.width, one.width
    if not sizes.common:
        return c * (9 * hidden + 3 * sizes.inner)
    heads = queries + 2 * keys
    rounded = sizes.adapters and c < WIDE  # adapters round their inputs for themselves, where frozen products keep none
    normed = 5 if rounded else 2
    numbers = normed * hidden + heads * (2 if sizes.head_norms else 1) + queries + 3 * sizes.inner
    scores = sizes.queries * -(-one.row // LANES) * LANES
    numbers += scores if scores <= KEPT * heads else 0  # attention keeps its weights where they are few
    return 2 * WIDE * hidden + c * numbers


def rounded_bytes(sizes: Sizes, shards: Shards, one: Pass) -> float:
    """Weights in the precision of the products, from the forward pass to the end of the backward pass, or of the forward pass with
    checkpointing. Without log-probs there is no head; of layers that come rounded from other ranks there is no copy.
    """
    if one.width == WIDE:
        return 0.0
    products = sizes.products if shards.ranks == 1 or sizes.wide else 0
    return one.width * (products + (sizes.table if one.trained else 0))


def logit_bytes(sizes: Sizes, one: Pass) -> float:
    """Of one chunk of tokens: more never exist."""
    return min(one.trained * sizes.vocabulary * one.width, CHUNK_BYTES)


def pass_of(name: str, sizes: Sizes, shards: Shards, one: Pass, moments: tuple[Moment, Moment]) -> list[Part]:
    """What forward and backward passes add to the weights at rest: while they run, and until the optimizer's step."""
    moment, step = moments
    gradient = shards.of(WIDE * sizes.trained)
    table = WIDE * sizes.table if one.trained and not sizes.adapters else 0.0
    grown = (
        gradient if one.micro_batches > 1 else min(table, gradient)
    )  # the head's comes while all activations are there
    twice = table if sizes.tied else 0.0  # of a tied embedding two are added up
    gathered = gathered_bytes(sizes, shards, one.width)
    left = SCATTERED * sum(whole_bytes(sizes, one.width)) / gathered if gathered else 0.0
    return [
        Part(f"{name}: activations of {one.tokens:,} tokens", activation_bytes(sizes, one), (moment,), FREED),
        Part(f"{name}: weights rounded for products", rounded_bytes(sizes, shards, one), (moment,), FREED),
        Part(f"{name}: logits of a chunk", logit_bytes(sizes, one), (moment,), FREED),
        Part(f"{name}: gradients while activations are there", grown, (moment,)),
        Part(f"{name}: gradients added up", twice, (step,)),
        Part(f"{name}: gathered weights", gathered, (moment, "score"), left),
    ]


def whole_bytes(sizes: Sizes, width: int) -> tuple[float, float]:
    """What ranks gather of a model once: layers in the precision of products, width bytes a number; embedding, head and last norm
    in float32, as each layer's norms are, which are few.
    """
    return (WIDE if sizes.wide else width) * sizes.layer * sizes.layers, WIDE * sizes.outside


def gathered_bytes(sizes: Sizes, shards: Shards, width: int) -> float:
    """What FSDP puts together of other ranks' parts (Zhao et al. 2023, arXiv:2304.11277, section 3.2.1): a layer and the next one,
    embedding and head all along; all layers where they are kept. And a layer's whole gradient, in float32.
    """
    if shards.ranks == 1:
        return 0.0
    layers, outside = whole_bytes(sizes, width)
    there = 1.0 if shards.keeps else min(2, sizes.layers) / sizes.layers
    return outside + there * layers + WIDE * min(sizes.layer, sizes.trained / sizes.layers)


@dataclass(frozen=True)
class Slots:
    """What the built-in engine samples at a time. rows: responses; prompts: different ones among them; width: bytes of a number."""

    rows: int
    prompts: int
    prompt: int
    response: int
    width: int


def cache_bytes(sizes: Sizes, slots: Slots, context: int) -> float:
    """Keys and values of all layers: 2 K W numbers of a token in each. A long prompt that several rows share is held once; the
    memory of rows grows by halves, so it may be up to half as much again as rows need.
    """
    of_token = 2 * sizes.keys * sizes.width * sizes.layers * slots.width
    held = slots.prompt >= HELD_FROM and slots.rows > slots.prompts
    first, last = (1, slots.response) if held else (slots.prompt + 1, slots.prompt + slots.response)
    room, need = stretch(first, context), stretch(last, context)
    for end in range(first, last + 1, 1 << 4):
        wanted = stretch(end, context)
        if wanted > room:
            room = max(wanted, room * 3 // 2)
    room = max(room, need)
    return of_token * (slots.rows * room + (slots.prompts * slots.prompt if held else 0))


def engine_of(sizes: Sizes, slots: Slots, context: int, *, copies: bool, on_cpu: bool) -> list[Part]:
    """The built-in engine. copies: whether it decodes over weights of its own."""
    own = slots.width * (sizes.parameters + (sizes.table if sizes.common and sizes.tied and on_cpu else 0))
    return [
        Part("engine: weights", own if copies else 0.0),
        Part("engine: keys and values", cache_bytes(sizes, slots, context), ALWAYS[1:]),
        Part("engine: logits", COPIES * WIDE * slots.rows * sizes.vocabulary, ("sample",)),
        Part("engine: adapters merged into weights", WIDE * sizes.adapted, ("start", "publish"), MERGED),
    ]


def freed_of(parts: Sequence[Part]) -> Part:
    """On a CPU: memory that was freed and is in nobody's hands, from the first pass on."""

    def left(moment: Moment) -> float:
        return sum(part.leaves * part.bytes for part in parts if moment in part.moments)

    learning: tuple[Moment, ...] = ("critic learns", "critic's step", "learn", "step")
    return Part("freed and not yet used again", max(map(left, learning)) + left("publish"), ALWAYS[1:])


def memory_of(parts: Iterable[Part]) -> Memory:
    """Without what takes nothing."""
    return Memory(tuple(part for part in parts if part.bytes > 0))
