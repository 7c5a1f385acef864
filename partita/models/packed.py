"""The one seam to a language model: packed rows in, log-probs of trained tokens out; decode slots in, logits out.

Nothing outside this floor calls a backbone or a head, so sharding hooks, adapters, compilation and checkpoint
recomputation hold in one place. A model whose family cannot be packed is `kind="plain"`: same `forward`, other
insides (`models.plain`).

Shapes: N model-input tokens, T trained tokens, S samples, D hidden width, V vocabulary, B decode slots, Q tokens per slot in one
call.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from partita.models.adapters import LoraConfig, adapted_layers, family_parameters, merged_layer, merged_weight
from partita.models.attention import Layout
from partita.models.heads import head_rule
from partita.models.layout import PackedLayout
from partita.models.parallel import Sharding, full, place, settle
from partita.models.plain import PlainState, decode, hidden_states, prefill
from partita.ops.linear_head import LinearHead
from partita.ops.logprobs import Side, chunk_tokens, full_kl, token_logprobs
from partita.ops.packing import Packed, filled

Kind = Literal["packed", "plain"]

# Products on a CPU take up to a fifth longer where the number of tokens has no divisor that suits their blocks: of all
# counts from 2,048 to 2,440 no multiple of 20 was slow.
TOKENS = 20


class Streams(NamedTuple):
    """What a forward gives for every trained token, float32 (float64 for float64 models), in nats. A tuple, for sharding looks
    for the outputs of a forward pass in tuples.

    kl_full_ref_T is KL(π ‖ reference) and kl_full_old_T is KL(old ‖ π), both over the whole vocabulary; only π, the
    model itself, gets a gradient. values_T is what the value head says of the state before each token, in the rewards'
    unit. None where the forward was not asked for it.
    """

    logprobs_T: Tensor
    entropy_T: Tensor | None = None
    kl_full_ref_T: Tensor | None = None
    kl_full_old_T: Tensor | None = None
    values_T: Tensor | None = None


@dataclass(frozen=True)
class Against:
    """Frozen models whose whole distributions a forward compares with its own; they run in the same micro-batch."""

    reference: PackedModel | None = None
    old: PackedModel | None = None


class PackedModel(nn.Module):
    """A causal language model of transformers behind one `forward` for training and `step` (or `plain_step`) for
    decoding.

    kind: "packed" needs the family to run with the attention function "partita"; "plain" uses the family's own
    attention and cache. padded: whether a plain family gives right answers for padded rows; else rows of equal length
    run together. known_head: whether `models.heads` knows the family's head; else the family computes whole logits
    itself (plain only). adapters: how those were made that `models.lora` added; then they and the value head are all that
    is trained. sharding: how its weights are spread over ranks (`models.parallel`).
    """

    def __init__(
        self, causal_lm: nn.Module, *, kind: Kind = "packed", padded: bool = True, known_head: bool = True
    ) -> None:
        super().__init__()
        if kind == "packed" and not known_head:
            raise ValueError("a packed model needs a head that models.heads knows; use kind='plain'")
        self.lm: Any = causal_lm
        self.kind: Kind = kind
        self.padded, self.known_head = padded, known_head
        self.value_head: nn.Linear | None = None
        self.adapters: LoraConfig | None = None
        self.sharding: Sharding | None = None
        self.rule = head_rule(self.lm.config.get_text_config())

    @property
    def backbone(self) -> Any:
        """The model without its head."""
        return self.lm.base_model

    @property
    def device(self) -> torch.device:
        """Where it computes: where the weights are, or are gathered."""
        return next(self.lm.parameters()).device if self.sharding is None else self.sharding.device

    def forward(
        self, packed: Packed, *, temperature: float, entropy: bool = False, against: Against | None = None,
        values: bool = False,
    ) -> Streams:  # fmt: skip
        """Log-probs (and entropies) of the trained tokens under the full softmax at `temperature`, their divergence from the
        models of `against`, and values of the same states.

        Works under autocast; `packed` may lie on another device than the weights. Raises ValueError for a model of
        another vocabulary.
        """
        own, linear = self._side(packed), self._linear_head()
        head = own.head if linear is None else linear
        chunk = chunk_tokens(self.vocabulary)
        logprobs_T, entropy_T = token_logprobs(
            head, own.hidden_TD, packed.target_T.to(self.device), chunk=chunk if linear is None else linear.chunk_tokens,
            temperature=temperature, entropy=entropy,
        )  # fmt: skip
        ref_T = old_T = None
        if against is not None and against.reference is not None:
            ref_T = full_kl(own, self._fixed(against.reference, packed), chunk=chunk, temperature=temperature)
        if against is not None and against.old is not None:
            old_T = full_kl(self._fixed(against.old, packed), own, chunk=chunk, temperature=temperature)
        values_T = None
        if values:
            states_TD = own.hidden_TD if self.known_head else self._states(packed)
            values_T = self._valued(states_TD)
        return Streams(logprobs_T, entropy_T, ref_T, old_T, values_T)

    def values(self, packed: Packed, *, ends: bool = False) -> tuple[Tensor, Tensor | None]:
        """What the value head says of the state before each trained token [T] and, if asked, of every sample's last state
        [S], after all of its tokens; at least float32. The language-model head does not run.
        """
        places = [packed.source_T, packed.end_S] if ends else [packed.source_T]
        found = self._valued(self._states(replace(packed, source_T=torch.cat(places))))
        trained = len(packed.source_T)
        return found[:trained], found[trained:] if ends else None

    def add_value_head(self) -> None:
        """One number per state beside the logits: a linear map of the last hidden state, zero at first, in float32."""
        width = self.lm.config.get_text_config().hidden_size
        self.value_head = nn.Linear(width, 1, bias=False, device=self.device)
        nn.init.zeros_(self.value_head.weight)

    def _valued(self, states_TD: Tensor) -> Tensor:
        if self.value_head is None:
            raise ValueError("values were asked of a model without a value head; add_value_head comes first")
        weight_1D = self.value_head.weight
        with torch.autocast(states_TD.device.type, enabled=False):  # one row of weights: rounding would gain nothing
            return nn.functional.linear(states_TD.to(weight_1D.dtype), weight_1D)[:, 0]

    def _states(self, packed: Packed, *, logits: bool = False) -> Tensor:
        """Last hidden states [T, D] at `source_T`, on whichever path the model runs; logits [T, V] if asked of a plain one."""
        if self.kind == "packed":
            return self._hidden(packed, self.device)
        return hidden_states(self.lm, packed, padded=self.padded, logits=logits)

    @property
    def vocabulary(self) -> int:
        """V, the width of the head."""
        return self.lm.get_output_embeddings().weight.shape[0]

    def fixed_side(self, packed: Packed) -> Side:
        """As the constant side of another model's divergence."""
        return self._side(packed, fixed=True)

    def _side(self, packed: Packed, fixed: bool = False) -> Side:
        """The head, and the hidden states [T, D] that predict the trained tokens."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not fixed):
            hidden_TD = self._states(packed, logits=not self.known_head)
        return Side(self._head if self.known_head else _identity, hidden_TD, fixed)

    def _fixed(self, other: PackedModel, packed: Packed) -> Side:
        """Another model as the constant side of a divergence."""
        if other.vocabulary != self.vocabulary:
            raise ValueError(
                f"{other.lm.name_or_path} gives logits of {other.vocabulary} tokens and {self.lm.name_or_path} of "
                f"{self.vocabulary}: a divergence over the whole vocabulary needs one vocabulary. Take another reference, or "
                "an estimator that looks at the sampled tokens only"
            )
        return other.fixed_side(packed)

    def _hidden(self, packed: Packed, device: torch.device) -> Tensor:
        if device.type == "cpu":
            packed = filled(packed, TOKENS)
        hidden_ND = self.backbone(
            input_ids=packed.ids_N[None].to(device),
            position_ids=packed.position_N[None].to(device),
            use_cache=False,
            layout=PackedLayout(packed, device),
        ).last_hidden_state[0]
        return hidden_ND.index_select(0, packed.source_T.to(device))

    def _head(self, hidden_TD: Tensor) -> Tensor:
        return self.rule(self.lm.get_output_embeddings()(hidden_TD))

    def _linear_head(self) -> LinearHead | None:
        """The head as one matrix product, where it is no more than that; adapters and sharding change its type."""
        head = self.lm.get_output_embeddings()
        if not self.known_head or type(head) is not nn.Linear:
            return None
        return LinearHead(head.weight, head.bias, self.rule.scale, self.rule.softcap)

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """The head as the family applies it (soft-cap, logit scale), in at least float32."""
        logits_TV = self._head(hidden_TD)
        return logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))

    def step(self, ids_BQ: Tensor, position_BQ: Tensor, *, layout: Layout, cache: Any, last_B: Tensor) -> Tensor:
        """Logits [B, V], float32, after token `last_B` of each slot's Q tokens; keys and values go through
        `cache.update`.

        For kind "packed" only; a plain model decodes through `plain_prefill` and `plain_step`.
        """
        hidden_BQD = self.backbone(
            input_ids=ids_BQ, position_ids=position_BQ, use_cache=True, cache=cache, layout=layout
        ).last_hidden_state
        return self.logits(hidden_BQD[torch.arange(ids_BQ.shape[0], device=hidden_BQD.device), last_B])

    @torch.no_grad()
    def plain_prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, PlainState]:
        """Logits [B, V], float32, after each prompt, and the state that `plain_step` advances; B is fixed from here on.

        Works for every model that is not set to the attention "partita". A row that has finished is fed any token; drop
        the state when all rows are done.
        """
        return prefill(self.lm, prompts, padded=self.padded)

    @torch.no_grad()
    def load_weights(self, given: Iterable[tuple[str, Tensor]]) -> None:
        """Copy weights into the model's own memory, cast to its dtype. Raises ValueError for unknown, missing or
        misshapen ones, and for a model with adapters, before anything is changed. A weight that is the model's own costs
        nothing: policy and sampler may be one model.
        """
        if self.adapters is not None:
            raise ValueError(
                "a model with adapters takes no whole weights: load them into a copy by cast_copy, without any"
            )
        own = dict(self.lm.named_parameters())
        for name, tensor in matched({name: p.shape for name, p in own.items()}, given).items():
            if tensor.data_ptr() != own[name].data_ptr():
                own[name].copy_(tensor)

    @torch.no_grad()
    def plain_step(self, state: PlainState, tokens_B: Sequence[int]) -> Tensor:
        """Append one token to every row of `state` (changed in place); logits [B, V], float32, after it."""
        return decode(self.lm, state, tokens_B)


def _identity(logits_TV: Tensor) -> Tensor:
    return logits_TV


def cast_copy(model: PackedModel, dtype: torch.dtype) -> PackedModel:
    """A copy of its own memory whose parameters have this dtype; buffers stay as they are.

    Rotary frequencies are buffers: rounded to bfloat16 they would turn every position by a wrong angle, and the error
    grows with the position. Adapters are merged into the copy, all of whose weights can be trained.
    """
    layers = adapted_layers(model)
    apart = {id(p) for layer in layers for p in layer.parameters()}
    # what deepcopy finds here it does not copy: no wide copy exists on the way, and tied weights stay tied
    cast: dict[int, Any] = {
        id(p): nn.Parameter(p.detach().to(dtype, copy=True), p.requires_grad or bool(layers))
        for p in model.parameters()
        if id(p) not in apart
    }
    cast |= {id(layer): merged_layer(layer, dtype) for layer in layers}
    other = copy.deepcopy(model, cast)
    other.adapters = None
    return other


def weights(model: PackedModel) -> Iterator[tuple[str, Tensor]]:
    """Every parameter once, under the family's own name; a tied head appears as the embedding only. Adapters are merged
    into what they adapt, one layer at a time and beside the model, which stays as it is.

    Of a sharded model one is gathered at a time: all ranks iterate, to the end.
    """
    settle(model)
    adapted = {id(layer.base_layer.weight): layer for layer in adapted_layers(model.lm)}
    for name, parameter in family_parameters(model.lm).items():
        yield name, _whole(parameter, adapted.get(id(parameter)), spread=model.sharding is not None)


def _whole(parameter: nn.Parameter, layer: Any, *, spread: bool) -> Tensor:
    """A parameter, or the merged weight of the adapted layer that has it; also for an engine that decodes in inference mode,
    where parts cannot be gathered.
    """
    with torch.inference_mode(False), torch.no_grad():
        if layer is None:
            return full(parameter.detach())
        if not spread:
            return merged_weight(layer)
        parts: dict[int, Any] = {id(p): nn.Parameter(full(p.detach()), False) for p in layer.parameters()}
        return merged_weight(copy.deepcopy(layer, parts))


def take_weights(model: PackedModel, source: PackedModel) -> None:
    """Give a model the weights of another one of its shape, whether ranks hold parts of them or not: as `load_weights`, one
    parameter at a time.
    """
    settle(model)
    own = dict(model.lm.named_parameters())
    matched({name: p.shape for name, p in own.items()}, family_parameters(source.lm).items())
    for name, whole in weights(source):
        place(own[name], whole)


def tied_names(model: PackedModel) -> dict[str, str]:
    """Of a head that is the embedding: its weight's name by the embedding's, as `weights` has that alone; else nothing."""
    head, embedding = model.lm.get_output_embeddings(), model.lm.get_input_embeddings()
    if head is None or head.weight is not embedding.weight:
        return {}
    paths = {id(module): path for path, module in model.lm.named_modules()}
    return {f"{paths[id(head)]}.weight": f"{paths[id(embedding)]}.weight"}


def fingerprint(model: PackedModel) -> int:
    """Of the weights, by a few thousand numbers of each: the same for the same model, another one after it was trained."""
    found = 0
    for _, weight in weights(model):
        some = weight.flatten()[:4096].to("cpu", torch.float32)
        found = zlib.crc32(some.numpy().tobytes(), found)
    return found


def matched(shapes: Mapping[str, torch.Size], given: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The given weights by name. Raises ValueError for unknown, missing or misshapen ones."""
    found = dict[str, Tensor]()
    for name, tensor in given:
        if shapes.get(name) != tensor.shape:
            known = f"has shape {tuple(shapes[name])} here" if name in shapes else "is not a weight of this model"
            raise ValueError(f"weight {name}, shape {tuple(tensor.shape)}: {known}")
        found[name] = tensor
    if missing := sorted(set(shapes) - set(found)):
        raise ValueError(f"{len(missing)} weights were not given, among them {missing[:3]}")
    return found
