"""Decoding without the family's modules: the layers of the common shape as few, fused operations over prepared weights.

A decode step of a small model is hundreds of tiny operations around a few matrix products, and the products run fastest
on weights in the layout of the machine's kernels. Training needs neither: it goes through the family's modules. The
common shape is Llama's: RMS norms, rotary positions, grouped heads, a gated MLP, residuals around both. What else a
family does is not guessed from its name: `lean_reason` looks at the modules, and `check_lean` compares log-probs.

Shapes: B slots, Q tokens per slot in one call, N = B Q tokens, D hidden width, H query heads, K key/value heads, W head
width, V vocabulary, O outputs, I inputs.
Left out: gradients, and families of another shape. They decode through `PackedModel.step`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.models.adapters import bare, family_parameters
from partita.models.attention import Layout, Rule
from partita.models.fused import GatedMLP, RMSNorm
from partita.models.layers import layer_windows
from partita.models.packed import PackedModel, matched, weights
from partita.models.parallel import hollow

LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
PACK_ROWS = 64  # oneDNN lays a weight out for so many rows of input; 1 to 300 ran equally fast


class Product(Protocol):
    """x @ weight.T + bias for [N, I], with what follows it computed on the way out where the kernel can."""

    def __call__(self, x_NI: Tensor) -> Tensor:
        """[N, O]."""
        ...

    def silu(self, x_NI: Tensor) -> Tensor:
        """silu of the product."""
        ...

    def times(self, x_NI: Tensor, other_NO: Tensor) -> Tensor:
        """The product times `other`."""
        ...

    def plus(self, x_NI: Tensor, other_NO: Tensor) -> Tensor:
        """The product plus `other`."""
        ...


class PlainProduct:
    """A weight as it is."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.weight_OI, self.bias_O = weight_OI, bias_O

    def __call__(self, x_NI: Tensor) -> Tensor:
        """See `Product`."""
        return F.linear(x_NI, self.weight_OI, self.bias_O)

    def silu(self, x_NI: Tensor) -> Tensor:
        """See `Product`."""
        return F.silu(self(x_NI))

    def times(self, x_NI: Tensor, other_NO: Tensor) -> Tensor:
        """See `Product`."""
        return self(x_NI) * other_NO

    def plus(self, x_NI: Tensor, other_NO: Tensor) -> Tensor:
        """See `Product`."""
        return self(x_NI) + other_NO


class PrepackedProduct:
    """A weight in oneDNN's blocked layout: half again as fast as the plain one in bfloat16 and twice in float32, where
    tens of rows are multiplied.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), PACK_ROWS)
        self._bias_O = bias_O

    def __call__(self, x_NI: Tensor) -> Tensor:
        """See `Product`."""
        return torch.ops.mkldnn._linear_pointwise(x_NI, self._weight, self._bias_O, "none", [], "")

    def silu(self, x_NI: Tensor) -> Tensor:
        """See `Product`."""
        return torch.ops.mkldnn._linear_pointwise(x_NI, self._weight, self._bias_O, "swish", [], "")

    def times(self, x_NI: Tensor, other_NO: Tensor) -> Tensor:
        """See `Product`."""
        return torch.ops.mkldnn._linear_pointwise.binary(x_NI, other_NO, self._weight, self._bias_O, "mul")

    def plus(self, x_NI: Tensor, other_NO: Tensor) -> Tensor:
        """See `Product`."""
        return torch.ops.mkldnn._linear_pointwise.binary(x_NI, other_NO, self._weight, self._bias_O, "add")


def can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this machine and this torch have the prepacked products."""
    known = hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    if not (known and device.type == "cpu" and torch.backends.mkldnn.is_available()):
        return False
    half = hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 or (dtype == torch.bfloat16 and half)


@dataclass(frozen=True)
class Norm:
    """An RMS norm over the last axis, computed in float32 or wider (Zhang and Sennrich 2019, equation 4)."""

    weight_D: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Any leading shape."""
        return F.rms_norm(x, self.weight_D.shape, self.weight_D, self.eps)


@dataclass(frozen=True)
class Layer:
    """The prepared weights of one layer; `qkv` are three products in one."""

    before_qkv: Norm
    qkv: Product
    norm_q: Norm | None
    norm_k: Norm | None
    out: Product
    before_mlp: Norm
    gate: Product
    up: Product
    down: Product
    rule: Rule


@dataclass(frozen=True)
class Place:
    """Where attention happens: the layer's number, (B, Q), and what knows the tokens before."""

    layer: int
    shape: tuple[int, int]
    rule: Rule
    layout: Layout
    cache: Any


@dataclass(frozen=True)
class Sizes:
    """Heads of a layer: H query heads, K key/value heads, of width W."""

    queries: int
    keys: int
    width: int


class LeanModel:
    """Decodes like the `PackedModel` that it was made of, in another precision, from weights of its own."""

    def __init__(self, model: PackedModel, dtype: torch.dtype, *, compiled: bool = False) -> None:
        """compiled: let torch.compile write what stands before and after attention, once for all layers.

        Raises ValueError for a model of another shape.
        """
        reason = lean_reason(model)
        if reason:
            raise ValueError(f"{type(model.lm).__name__} cannot be decoded lean: {reason}")
        shape = hollow(model)  # nothing of the policy's own: its modules may be sharded later
        self._modules, self._rule, self.dtype, self.device = shape.backbone, model.rule, dtype, model.device
        self._rotary = copy.deepcopy(model.backbone.rotary_emb)  # some remember what they were last asked for
        # checked at load against what the layers hand down
        self._windows = layer_windows(model.lm.config.get_text_config())
        self._head = bare(shape.lm.get_output_embeddings())
        own = family_parameters(shape.lm)
        self._shapes = {name: p.shape for name, p in own.items()}
        self._names = {id(p): name for name, p in own.items()}
        first = self._modules.layers[0].self_attn
        width = first.head_dim
        self._sizes = Sizes(first.q_proj.out_features // width, first.k_proj.out_features // width, width)
        self._before, self._after = before_attention, after_attention
        if compiled:
            self._before = torch.compile(before_attention, dynamic=True)
            self._after = torch.compile(after_attention, dynamic=True)
        self._layers = list[Layer]()
        self._product = PrepackedProduct if can_prepack(self.device, dtype) and not compiled else PlainProduct
        self._prepare(dict(weights(model)))

    @torch.no_grad()
    def load_weights(self, given: Iterable[tuple[str, Tensor]]) -> None:
        """Prepare other weights. Raises ValueError for unknown, missing or misshapen ones; nothing has changed then."""
        self._prepare(matched(self._shapes, given))

    def step(self, ids_BQ: Tensor, position_BQ: Tensor, *, layout: Layout, cache: Any, last_B: Tensor) -> Tensor:
        """See `PackedModel.step`."""
        rows, tokens = ids_BQ.shape
        x_ND = self._table_VD.index_select(0, ids_BQ.reshape(-1))
        turn = Rotation.at(self._rotary, x_ND, position_BQ, self._sizes)
        for index, layer in enumerate(self._layers):
            turned_NAW, v_NKW = self._before(layer, x_ND, turn, self._sizes)
            mixed_NC = self._attend(Place(index, (rows, tokens), layer.rule, layout, cache), turned_NAW, v_NKW)
            x_ND = self._after(layer, x_ND, mixed_NC)
        if tokens > 1:
            x_ND = x_ND.view(rows, tokens, -1)[torch.arange(rows, device=x_ND.device), last_B]
        logits_BV = self._rule(self._logits(self._last_norm(x_ND)))
        return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))

    def _attend(self, place: Place, turned_NAW: Tensor, v_NKW: Tensor) -> Tensor:
        """[N, H W], the heads' mixtures before the output product."""
        queries = self._sizes.queries
        turned, v = (x.unflatten(0, place.shape).transpose(1, 2) for x in (turned_NAW, v_NKW))
        k = turned[:, queries:]
        if place.shape[1] > 1:  # what is kept of a prompt must not keep all of the product that it is a part of
            k, v = k.contiguous(), v.contiguous()
        k, v = place.cache.update(k, v, place.layer)
        mixed = place.layout.attend(turned[:, :queries], k, v, place.rule)
        return mixed.reshape(turned_NAW.shape[0], -1)

    def _prepare(self, found: dict[str, Tensor]) -> None:
        """All layers from whole weights, one at a time: a plain copy is dropped once its layer is prepared."""

        def own(parameter: Tensor) -> Tensor:
            # a copy in any case: the learner changes its weights in place while this version is sampled from
            return found[self._names[id(parameter)]].to(self.device, self.dtype, copy=True)

        def product(*layers: nn.Module) -> Product:
            linears: list[nn.Linear] = [bare(layer) for layer in layers]
            weights_OI = [own(linear.weight) for linear in linears]
            biases_O = [own(linear.bias) for linear in linears if linear.bias is not None]
            return self._product(
                torch.cat(weights_OI) if len(weights_OI) > 1 else weights_OI[0],
                torch.cat(biases_O) if biases_O else None,
            )

        def norm(module: Any) -> Norm:
            return Norm(own(module.weight), module.variance_epsilon)

        def maybe_norm(module: Any) -> Norm | None:
            return None if module is None else norm(module)

        def layer(block: Any, window: int | None) -> Layer:
            attention, mlp = block.self_attn, block.mlp
            return Layer(
                norm(block.input_layernorm), product(attention.q_proj, attention.k_proj, attention.v_proj),
                maybe_norm(getattr(attention, "q_norm", None)), maybe_norm(getattr(attention, "k_norm", None)),
                product(attention.o_proj), norm(block.post_attention_layernorm),
                product(mlp.gate_proj), product(mlp.up_proj), product(mlp.down_proj),
                Rule(attention.scaling, None, window, None),
            )  # fmt: skip

        for index, both in enumerate(zip(self._modules.layers, self._windows, strict=True)):
            self._layers[index : index + 1] = [layer(*both)]  # in place: old and new weights never stand side by side
        self._table_VD = own(self._modules.embed_tokens.weight)
        tied, bias_V = self._head.weight is self._modules.embed_tokens.weight, self._head.bias
        head_VD = self._table_VD if tied else own(self._head.weight)
        self._last_norm = norm(self._modules.norm)
        self._logits = self._product(head_VD, None if bias_V is None else own(bias_V))


@dataclass(frozen=True)
class Rotation:
    """Rotary positions (Su et al. 2021, equation 34) of one call, halves paired: x cos + (x rolled by W / 2) sin, the
    first half of sin negated.
    """

    cos_N1W: Tensor
    sin_N1W: Tensor

    @staticmethod
    def at(rotary: nn.Module, x_ND: Tensor, position_BQ: Tensor, sizes: Sizes) -> Rotation:
        """The family's own frequencies at these positions."""
        cos, sin = rotary(x_ND, position_BQ)
        half = sizes.width // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        return Rotation(cos.reshape(-1, 1, sizes.width), sin.reshape(-1, 1, sizes.width))

    def __call__(self, x_NAW: Tensor) -> Tensor:
        """Every head turned by its token's position."""
        return torch.addcmul(x_NAW * self.cos_N1W, x_NAW.roll(x_NAW.shape[-1] // 2, -1), self.sin_N1W)


def before_attention(layer: Layer, x_ND: Tensor, turn: Rotation, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Queries and keys [N, H + K, W], turned by their positions, and values [N, K, W]."""
    heads, both = sizes.queries, sizes.queries + sizes.keys
    all_NAW = layer.qkv(layer.before_qkv(x_ND)).view(x_ND.shape[0], both + sizes.keys, sizes.width)
    turned_NAW = all_NAW[:, :both]
    if layer.norm_q is not None and layer.norm_k is not None:
        turned_NAW = torch.cat([layer.norm_q(turned_NAW[:, :heads]), layer.norm_k(turned_NAW[:, heads:])], 1)
    return turn(turned_NAW), all_NAW[:, both:]


def after_attention(layer: Layer, x_ND: Tensor, mixed_NC: Tensor) -> Tensor:
    """What the layer hands on [N, D], from what came in and the heads' mixtures [N, H W]."""
    x_ND = layer.out.plus(mixed_NC, x_ND)
    y_ND = layer.before_mlp(x_ND)
    return layer.down.plus(layer.up.times(y_ND, layer.gate.silu(y_ND)), x_ND)


def lean_reason(model: PackedModel) -> str:
    """Why the model's modules are not of the common shape; empty where they are."""
    if model.kind != "packed":
        return "it runs on the plain path"
    backbone: Any = model.backbone
    wanted = {"embed_tokens", "layers", "norm", "rotary_emb"}
    if _children(backbone) != wanted:
        return f"its backbone is made of {sorted(_children(backbone))}"
    if type(backbone.norm) is not RMSNorm or list(backbone.parameters(recurse=False)):
        return "its last norm is of another kind, or its backbone has weights of its own"
    if type(bare(model.lm.get_output_embeddings())) is not nn.Linear or type(backbone.embed_tokens) is not nn.Embedding:
        return "its head or its embedding is not a plain one"
    shapes = {tuple(p.shape for p in family_parameters(block).values()) for block in backbone.layers}
    reasons = (_layer_reason(block) for block in backbone.layers)
    return next(filter(None, reasons), "" if len(shapes) == 1 else "its layers differ in shape")


def _layer_reason(block: Any) -> str:
    if _children(block) != LAYER:
        return f"a layer is made of {sorted(_children(block))}"
    attention, mlp = block.self_attn, block.mlp
    parts = _children(attention)
    if parts - HEAD_NORMS != ATTENTION_PARTS or len(parts & HEAD_NORMS) == 1:
        return f"its attention is made of {sorted(parts)}"
    if type(mlp) is not GatedMLP:
        return "its MLP is not gated by SiLU alone"
    qkv = [bare(linear) for linear in (attention.q_proj, attention.k_proj, attention.v_proj)]
    others = [bare(linear) for linear in (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
    if any(type(linear) is not nn.Linear for linear in qkv + others):
        return "its products are not plain linear layers"
    if len({linear.bias is None for linear in qkv}) > 1:
        return "only some of queries, keys and values have a bias"
    head_norms = [getattr(attention, name) for name in parts & HEAD_NORMS]
    if not all(type(norm) is RMSNorm for norm in (block.input_layernorm, block.post_attention_layernorm, *head_norms)):
        return "its norms are of another kind"
    if any(list(module.parameters(recurse=False)) for module in (block, attention, mlp)):
        return "a layer has weights beside its products and norms"
    if any(norm.weight.shape[0] != attention.head_dim for norm in head_norms):
        return "its query and key norms span all heads"
    return ""


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}
