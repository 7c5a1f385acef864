"""Decide at load how a model runs: three random rows through the family's own forward and through ours must agree.

The order is packed, plain with padding, plain without; a model that fails all three is refused. Nothing here trusts a
family's name: a new family that follows transformers' interface is fast without a change.

Shapes: L tokens of a row, V vocabulary, B slots, Q query tokens, H query heads, K key/value heads, D head width.
Left out: sliding windows longer than a probe row. For those, the window that each layer hands down is compared with the
configuration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from partita.models.attention import ATTENTION, Rule, attend_masked, register
from partita.models.layers import layer_types, layer_windows
from partita.models.lean import LeanModel, lean_reason
from partita.models.packed import Kind, PackedModel, cast_copy
from partita.ops.packing import SAVED, Packed, pack
from partita.records import Row

# Largest difference of log-probs that rounding explains; half precision is judged by the mean, whose noise is
# smaller.
LIMITS = {torch.float64: 1e-5, torch.float32: 1e-2}
HALF_LIMIT = 0.2
# Rounding differs between any two implementations: three times what the family's own two differ by is still rounding,
# up to five times the limits above.
OWN_NOISE, MOST_NOISE = 3.0, 5.0
PROBE_WINDOW = 64
KNOWN_LAYERS = {"full_attention", "sliding_attention", "dense", "sparse", "moe", "mlp"}


class ModelRefused(ValueError):
    """No way of running this model gives the answers of its own forward."""


@dataclass(frozen=True)
class Verdict:
    """How to run the model. `difference` is the largest found on the way that is used, in nats; `notes` say why."""

    kind: Kind
    padded: bool
    known_head: bool
    difference: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Probe:
    """Random rows, of which the first two share a prefix, and what the family says about each."""

    rows: tuple[tuple[int, ...], ...]
    truth: tuple[Tensor, ...]
    limit: float
    half: bool

    def gap(self, logprobs: Sequence[Tensor]) -> float:
        """Distance of log-probs (rows of [L - 1]) from the truth."""
        far = (torch.cat(list(logprobs)) - torch.cat(self.truth)).abs()
        return float(far.mean() if self.half else far.max())


@torch.no_grad()
def self_check(lm: Any) -> Verdict:
    """Compare, and leave `lm` set to the attention that the verdict needs. Raises ModelRefused when nothing agrees."""
    register()
    lm.eval()
    own_attention = lm.config._attn_implementation
    probe = _probe(lm)
    known_head = _attempt(probe, partial(_head_logprobs, lm, probe)) <= probe.limit
    notes: list[str] = [] if known_head else ["head: unknown to models.heads, the family computes whole logits"]
    reason = "unknown head" if not known_head else _static_reason(lm)
    if not reason:
        lm.set_attn_implementation(ATTENTION)
        reason, gap = _packed_reason(lm, probe)
        if not reason:
            note = f"fast path, checked: differs from the family's own forward by {gap:.1e} nats"
            return Verdict("packed", True, True, gap, (note,))
        lm.set_attn_implementation(own_attention)
    notes.append(f"plain path (slower), because: {reason}")
    for padded in (True, False):
        model = PackedModel(lm, kind="plain", padded=padded, known_head=known_head)
        gap = max(_attempt(probe, partial(way, model, probe)) for way in (_trained, _plain_decoded))
        if gap <= probe.limit:
            notes += [] if padded else ["padding changes this family's answers: only rows of equal length run together"]
            return Verdict("plain", padded, known_head, gap, tuple(notes))
    raise ModelRefused(
        f"{type(lm).__name__}: neither packed nor padded nor single rows give the log-probs of its own forward "
        f"(off by {gap:.3g} nats, limit {probe.limit:.1g}); {reason}"
    )


@torch.no_grad()
def decoding_copy(
    model: PackedModel, dtype: torch.dtype, *, alone: bool, compiled: bool = False
) -> tuple[PackedModel | LeanModel, str]:
    """A model that decodes what `model` says, in `dtype`, and a note on which way it goes.

    Lean, with weights of its own, where the modules have the common shape and the log-probs of random rows agree, at the
    beginning and at the end of the context: in float32 within its rounding, in bfloat16 within three times what rounding
    does to the policy's own forward under autocast. Else through the family's modules. alone: these may be the policy's own
    where the precision is the same, as nobody changes or trains them while they decode; adapters are always merged
    into a copy. compiled: by torch.compile, whose time the note tells.
    """
    reason = lean_reason(model)
    if not reason:
        try:
            with torch.inference_mode():  # as the engine decodes: torch.compile would tell the difference
                began = time.perf_counter()
                lean = LeanModel(model, dtype, compiled=compiled)
                gap, limit = _lean_gap(model, lean)
                how = f", compiled in {time.perf_counter() - began:.0f} s" if compiled else ""
        except Exception as error:  # any failure over a family's parts only means that this way is closed for it
            gap, limit, reason = float("inf"), 0.0, f"{type(error).__name__}: {error}"
        else:
            if gap <= limit:
                return (
                    lean,
                    f"decoding over fused layers{how}, checked: {gap:.1e} nats from the policy (limit {limit:.1g})",
                )
            reason = f"fused layers are off by {gap:.2g} nats (limit {limit:.1g})"
    own = next(model.parameters()).dtype
    shares = (
        alone and dtype == own and model.adapters is None
    )  # a copy with adapters merged is faster, and takes weights
    sampler = model if shares else cast_copy(model, dtype)
    left = "; rollout.compile has no effect on them" if compiled else ""
    return sampler, f"decoding through the family's modules (slower), because: {reason}{left}"


def _lean_gap(model: PackedModel, lean: LeanModel) -> tuple[float, float]:
    """Distance of the lean way's log-probs from the model's own, and what rounding explains."""
    config = model.lm.config.get_text_config()
    rows, half = _rows(config), lean.dtype not in LIMITS
    last = int(getattr(config, "max_position_embeddings", 0)) - max(map(len, rows))
    gaps = list[float]()
    for first in (0, max(last, 0)):  # what a family does to late positions only does not show at the first ones
        truth = _slot_decoded(model, Probe(rows, (), 0.0, half), Slots(), first)
        probe = Probe(rows, tuple(truth), 0.0, half)
        gaps.append(probe.gap(_slot_decoded(lean, probe, Slots(), first)))
    gap = max(gaps) if all(gap == gap for gap in gaps) else float("inf")
    if not half:
        return gap, LIMITS[lean.dtype]
    probe = replace(probe, truth=tuple(_trained(model, probe)))
    with torch.autocast(model.device.type, dtype=lean.dtype):
        noise = probe.gap(_trained(model, probe))
    return gap, OWN_NOISE * noise


def _probe(lm: Any) -> Probe:
    rows = _rows(lm.config.get_text_config())
    limit = LIMITS.get(lm.dtype, HALF_LIMIT)
    probe = Probe(rows, tuple(_own(lm, rows)), limit, lm.dtype not in LIMITS)
    if lm.config._attn_implementation != "sdpa":
        return probe
    lm.set_attn_implementation("eager")
    noise = _attempt(probe, partial(_own, lm, rows))
    lm.set_attn_implementation("sdpa")
    return replace(
        probe, limit=min(max(limit, OWN_NOISE * noise), MOST_NOISE * limit) if noise < float("inf") else limit
    )


def _rows(config: Any) -> tuple[tuple[int, ...], ...]:
    """Random rows, of which the first two share a prefix that is longer than a short sliding window, and the third begins with
    most of it.
    """
    window = max((w for w in layer_windows(config) if w is not None), default=0)
    root = SAVED + 1
    shared = max(window if window <= PROBE_WINDOW else 0, root) + 3
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (3, shared + 9), generator=generator).tolist()
    return (
        tuple(ids[0][: shared + 5]),
        (*ids[0][:shared], *ids[1][shared:]),
        (*ids[0][:root], *ids[2][root : shared + 2]),
    )


def _attempt(probe: Probe, logprobs: Callable[[], Sequence[Tensor]]) -> float:
    """The gap, infinite where the family's code cannot do it at all."""
    try:
        gap = probe.gap(logprobs())
    except Exception:  # any failure inside a family's code only means that this way is closed for it
        return float("inf")
    return gap if gap == gap else float("inf")


def _static_reason(lm: Any) -> str:
    """What the configuration already rules out: state that a key/value cache does not hold."""
    strange = set(layer_types(lm.config.get_text_config())) - KNOWN_LAYERS
    if lm._is_stateful or strange:
        return f"layers with recurrent state or their own masks ({', '.join(sorted(strange)) or 'by the model class'})"
    return ""


def _packed_reason(lm: Any, probe: Probe) -> tuple[str, float]:
    """Why the packed way is closed ("" if open), and its gap."""
    if lm.config._attn_implementation != ATTENTION:
        return "its attention does not go through transformers' AttentionInterface", float("inf")
    model, slots = PackedModel(lm), Slots()
    try:
        packed = probe.gap(_trained(model, probe))
        slotted = probe.gap(_slot_decoded(model, probe, slots))
    except Exception as error:  # any failure inside a family's code only means that this way is closed for it
        return f"{type(error).__name__}: {error}", float("inf")
    gap = max(packed, slotted)
    if not gap <= probe.limit:
        return f"packed rows are off by {packed:.2g}, cached ones by {slotted:.2g} nats (limit {probe.limit:.1g})", gap
    expected = layer_windows(lm.config.get_text_config())
    if expected != slots.windows:
        return f"its layers ask for sliding windows {slots.windows}, its configuration says {expected}", gap
    return "", gap


def _chosen(logits_LV: Tensor, row: Sequence[int]) -> Tensor:
    """Log-probs [L - 1] of each next token of the row, from the logits after each token."""
    wide_LV = logits_LV[: len(row) - 1].to(torch.promote_types(logits_LV.dtype, torch.float32))
    return wide_LV.log_softmax(-1).gather(1, torch.tensor(row[1:], device=wide_LV.device)[:, None])[:, 0].cpu()


def _own(lm: Any, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """Log-probs by the family's own forward, one row at a time."""
    logits = (lm(input_ids=torch.tensor([row], device=lm.device), use_cache=False).logits[0] for row in rows)
    return [_chosen(logits_LV, row) for logits_LV, row in zip(logits, rows, strict=True)]


def _head_logprobs(lm: Any, probe: Probe) -> list[Tensor]:
    """Log-probs by the family's backbone and our head."""
    model = PackedModel(lm, kind="plain")
    ids = (torch.tensor([row], device=lm.device) for row in probe.rows)
    hidden = (model.backbone(input_ids=ids_1L, use_cache=False).last_hidden_state[0] for ids_1L in ids)
    return [_chosen(model.logits(hidden_LD), row) for hidden_LD, row in zip(hidden, probe.rows, strict=True)]


def _trained(model: PackedModel, probe: Probe) -> list[Tensor]:
    """Log-probs by the forward used in training: two rows behind one prefix, and a row that begins like it."""
    logprobs_T = model(_packed(probe.rows), temperature=1.0).logprobs_T.cpu()
    return list(logprobs_T.split([len(row) - 1 for row in probe.rows]))


def _packed(rows: Sequence[Sequence[int]]) -> Packed:
    def whole(ids: Sequence[int]) -> Row:
        return Row(list(ids), [i > 0 for i in range(len(ids))], [0.0] * len(ids), [0] * len(ids))

    return pack([[whole(row)] for row in rows], [0, 0, 1])


def _plain_decoded(model: PackedModel, probe: Probe) -> list[Tensor]:
    """Log-probs of each row's second half, decoded behind its first; the first half is taken as it is in the truth."""
    starts = [len(row) // 2 for row in probe.rows]
    logits_BV, state = model.plain_prefill([row[:start] for row, start in zip(probe.rows, starts, strict=True)])
    seen = [[logits_BV]]
    for t in range(max(len(row) - start for row, start in zip(probe.rows, starts, strict=True))):
        tokens = [row[min(start + t, len(row) - 1)] for row, start in zip(probe.rows, starts, strict=True)]
        seen[0].append(model.plain_step(state, tokens))
    logits_BtV = torch.stack(seen[0], 1)
    return [
        torch.cat([truth[: start - 1], _chosen(logits_BtV[b], row[start - 1 :])])
        for b, (row, truth, start) in enumerate(zip(probe.rows, probe.truth, starts, strict=True))
    ]


def _slot_decoded(model: PackedModel | LeanModel, probe: Probe, slots: Slots, first: int = 0) -> list[Tensor]:
    """Log-probs by decoding token by token; slot b starts b steps late, so that slots stand at different positions.
    first: the position of the rows' first token.
    """
    rows, device = probe.rows, model.device
    seen: list[list[Tensor]] = [[] for _ in rows]
    last_B = torch.zeros(len(rows), dtype=torch.long, device=device)
    for t in range(max(len(row) + b for b, row in enumerate(rows))):
        at = [min(max(t - b, 0), len(row) - 1) for b, row in enumerate(rows)]
        slots.position_B = torch.tensor(at, device=device)
        ids_B1 = torch.tensor([[row[i]] for row, i in zip(rows, at, strict=True)], device=device)
        logits_BV = model.step(ids_B1, slots.position_B[:, None] + first, layout=slots, cache=slots, last_B=last_B)
        for b, row in enumerate(rows):
            if b <= t < b + len(row):
                seen[b].append(logits_BV[b])
    return [_chosen(torch.stack(logits), row) for logits, row in zip(seen, rows, strict=True)]


class Slots:
    """The smallest cache and layout of decode slots: one list of keys and values per layer, one token per call."""

    is_compileable = False

    def __init__(self) -> None:
        self.position_B = torch.zeros(0)
        self.windows: list[int | None] = []
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before this call, of the slot that has most."""
        return int(self.position_B.max())

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The same; transformers asks under both names."""
        return self.get_seq_length()

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Keys to attend over, and the position of the first of them."""
        return self.get_seq_length() + query_length, 0

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Write [B, K, 1, D] at each slot's position; gives the keys and values written so far, [B, K, L, D]."""
        room = self.get_seq_length() + 1
        grown: list[Tensor] = []
        for i, new in enumerate((keys, values)):
            old = self._layers[layer_idx][i] if layer_idx in self._layers else new[:, :, :0]
            lacking = max(0, room - old.shape[2])
            whole = torch.cat([old, new.new_zeros(*new.shape[:2], lacking, new.shape[3])], 2)
            whole[torch.arange(len(new), device=new.device), :, self.position_B] = new[:, :, 0]
            grown.append(whole)
        self._layers[layer_idx] = (grown[0], grown[1])
        return self._layers[layer_idx]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `attention.Layout`; notes the window of every layer of the first call."""
        if not bool(self.position_B.any()):
            self.windows.append(rule.window)
        behind_BL = self.position_B[:, None] - torch.arange(k.shape[2], device=k.device)
        allowed_BL = behind_BL >= 0
        if rule.window is not None:
            allowed_BL &= behind_BL < rule.window
        return attend_masked(q, k, v, allowed_BL[:, None, None], rule).transpose(1, 2)
