"""Reward models: any sequence-classification folder with one label becomes token rows in, one score each out.

A decoder's score is read after the last token of a row, known by the row's length: a token id never tells where a row
ends, so it does not matter what pads, or whether the padding is also the end of a text. How a family runs is decided by
comparing with its own forward, one row at a time, as `models.selfcheck` does for language models.

Shapes: R rows, N model-input tokens, D hidden width.
Left out: encoder-decoders, and several labels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerBase

from partita.models.attention import ATTENTION, Layout, Rule, register
from partita.models.fused import fuse
from partita.models.layers import layer_types, layer_windows
from partita.models.layout import PackedLayout
from partita.models.load import SCORER, ModelLoadError, _context, _no_dropout, load_tokenizer
from partita.models.packed import PackedModel
from partita.models.quiet import quiet
from partita.models.selfcheck import KNOWN_LAYERS, ModelRefused
from partita.ops.packing import Packed, micro_batches, pack
from partita.records import Row

STATS = "reward_stats.json"
MAX_TOKENS = 8192  # model-input tokens of one forward
# Largest difference of scores that rounding explains, relative to the largest score where that is above 1.
LIMITS = {torch.float64: 1e-5, torch.float32: 1e-3}
HALF_LIMIT = 0.1


@dataclass(frozen=True)
class ScoreStats:
    """Mean and standard deviation of a reward model's scores on the data that it was judged on, in the scores' unit."""

    mean: float
    std: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std > 0):
            raise ValueError(f"mean {self.mean} and std {self.std}: a finite mean and a positive std are needed")

    def write(self, folder: Path) -> None:
        """Into a model's folder, as reward_stats.json."""
        (folder / STATS).write_text(json.dumps({"mean": self.mean, "std": self.std}))


def read_stats(path: str) -> ScoreStats | None:
    """What a model's folder says of its scores; None where it says nothing. Raises ModelLoadError for a broken file."""
    file = Path(path).expanduser() / STATS
    if not file.is_file():
        return None
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        return ScoreStats(float(known["mean"]), float(known["std"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f'{file}: not {{"mean": ..., "std": ...}} ({type(error).__name__}: {error})') from error


@dataclass(frozen=True)
class LastToken:
    """A decoder: the head reads the hidden state after each row's last token."""

    model: PackedModel

    def batches(self, rows: Sequence[Sequence[int]], alike: Sequence[int], budget: int) -> list[list[int]]:
        """Indices of rows per forward; rows of equal number in `alike` share the tokens that they begin with."""
        if self.model.kind == "plain":
            return _by_length(rows, budget)
        return micro_batches([[_untrained(row)] for row in rows], alike, budget, whole=True)

    def scores(self, rows: Sequence[Sequence[int]], alike: Sequence[int]) -> Tensor:
        """[R], at least float32."""
        _, score_R = self.model.values(_packed(rows, alike), ends=True)
        assert score_R is not None
        return score_R


@dataclass(frozen=True)
class WholeModel:
    """A model whose own class pools and scores, such as an encoder. padded: rows of several lengths may run together,
    with `pad` and a mask on the right.
    """

    model: Any
    pad: int
    padded: bool

    def batches(self, rows: Sequence[Sequence[int]], alike: Sequence[int], budget: int) -> list[list[int]]:
        """Indices of rows per forward."""
        return _by_length(rows, budget) if self.padded else [[r] for r in range(len(rows))]

    def scores(self, rows: Sequence[Sequence[int]], alike: Sequence[int]) -> Tensor:
        """[R], at least float32."""
        width = max(map(len, rows))
        ids_RL = torch.tensor([[*row, *[self.pad] * (width - len(row))] for row in rows])
        mask_RL = (torch.arange(width) < torch.tensor([[len(row)] for row in rows])).long()
        device = self.model.device
        score_R = self.model(input_ids=ids_RL.to(device), attention_mask=mask_RL.to(device)).logits[:, 0]
        return score_R.to(torch.promote_types(score_R.dtype, torch.float32))


Way = LastToken | WholeModel


@dataclass(frozen=True)
class ScoringModel:
    """A reward model that is ready to score. context: most tokens of a row. stats: what is taken off the scores and what they
    are divided by, None for neither. notes: what to tell the user, by line.
    """

    path: str
    way: Way
    tokenizer: PreTrainedTokenizerBase
    context: int
    stats: ScoreStats | None
    notes: tuple[str, ...]
    max_tokens: int

    @torch.inference_mode()
    def scores(self, rows: Sequence[Sequence[int]], alike: Sequence[int] | None = None) -> list[float]:
        """The score of each row of token ids, in the order given.

        alike: rows of one number begin alike (one prompt, several answers), and what they share runs once where the family
        allows. What runs together changes a score by rounding only. Raises ValueError for a row that is empty or longer than
        `context`.
        """
        for r, row in enumerate(rows):
            if not 0 < len(row) <= self.context:
                raise ValueError(
                    f"row {r} has {len(row)} tokens; the reward model {self.path} takes 1 to {self.context}"
                )
        alike = range(len(rows)) if alike is None else alike
        scores = [0.0] * len(rows)
        for chosen in self.way.batches(rows, alike, self.max_tokens) if rows else ():
            score_R = self.way.scores([rows[r] for r in chosen], [alike[r] for r in chosen])
            for r, score in zip(chosen, score_R.tolist(), strict=True):
                scores[r] = score if self.stats is None else (score - self.stats.mean) / self.stats.std
        return scores


def load_scorer(
    path: str, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu", trust_remote_code: bool = False,
    normalise: bool = False, max_tokens: int = MAX_TOKENS,
) -> ScoringModel:  # fmt: skip
    """A folder or hub name of a sequence-classification model with one label, decoder or encoder, frozen.

    normalise: scores get the mean 0 and the std 1 on the data that the model's reward_stats.json speaks of. max_tokens:
    model-input tokens of one forward. Raises ModelLoadError for a model without a trained head for one score or without the
    file, ModelRefused where no way of running it gives the scores of its own forward.
    """
    stats = read_stats(path) if normalise else None
    if normalise and stats is None:
        raise ModelLoadError(
            f"{path}: no {STATS} to normalise by, or not a local folder; write one beside the weights, as "
            '{"mean": 0.4, "std": 2.1} of its scores on data like yours, or do not normalise'
        )
    tokenizer = load_tokenizer(path, trust_remote_code)
    model, notes = _load(path, dtype, trust_remote_code)
    model.to(device).eval().requires_grad_(False)
    context, context_notes = _context(model, tokenizer)
    way, note = _way(model)
    return ScoringModel(path, way, tokenizer, context, stats, (note, *context_notes, *notes), max_tokens)


def is_scorer(path: str, trust_remote_code: bool = False) -> bool:
    """Whether a folder or hub name is that of a sequence-classification model; False for what cannot be read."""
    try:
        config = _config(path, trust_remote_code)
    except ModelLoadError:
        return False
    return any(name.endswith(SCORER) for name in config.architectures or ())


def load_value_model(
    path: str, policy: PreTrainedTokenizerBase, *, device: str | torch.device = "cpu", trust_remote_code: bool = False
) -> PackedModel:
    """A reward model in float32 as the critic of a policy with this tokenizer: its score is the value head.

    Raises ModelLoadError where it does not know the policy's token ids, or where the head is not one linear map of the last
    hidden state.
    """
    check_ids(path, load_tokenizer(path, trust_remote_code), policy)
    model, _ = _load(path, torch.float32, trust_remote_code)
    model.get_input_embeddings().padding_idx = None  # as in `load_causal_lm`: the end of a text may pad, too
    way, _ = _way(model.to(device).eval())
    if not isinstance(way, LastToken):
        raise ModelLoadError(
            f"{path}: {type(model).__name__} scores a row otherwise than by a linear map of its last hidden state, so it says "
            "nothing of the states before; a critic starts from a decoder with a score head, or from a language model"
        )
    return way.model


def check_ids(path: str, tokenizer: PreTrainedTokenizerBase, policy: PreTrainedTokenizerBase) -> None:
    """Raises ModelLoadError unless every token of the policy has the same id here; there may be more tokens here."""
    theirs = tokenizer.get_vocab()
    for token, i in sorted(policy.get_vocab().items(), key=lambda item: item[1]):
        if theirs.get(token) != i:
            raise ModelLoadError(
                f"{path} and the policy {policy.name_or_path}: their tokenizers differ ({token!r} is "
                f"{theirs.get(token, 'absent')} and {i}), so a token id means two things. Take a model of the policy's family"
            )


def _source(path: str) -> str:
    folder = Path(path).expanduser()
    return str(folder) if folder.is_dir() else path


def _config(path: str, trust_remote_code: bool) -> Any:
    try:
        with quiet():
            return AutoConfig.from_pretrained(_source(path), trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise ModelLoadError(f"{path}: not a model in Hugging Face's format: {error}") from error


def loaded_as(kind: Any, path: str, dtype: torch.dtype, trust_remote_code: bool) -> tuple[Any, list[str]]:
    """The family's own class by transformers' `kind` of auto class, and the names of weights that the folder lacks."""
    try:
        with quiet():
            loaded: Any = kind.from_pretrained(
                _source(path),
                dtype=dtype,
                weights_only=True,
                output_loading_info=True,
                trust_remote_code=trust_remote_code,
            )
    except (OSError, ValueError, ImportError) as error:
        raise ModelLoadError(f"{path}: transformers could not load it: {error}") from error
    model, report = loaded
    return model, sorted(map(str, [*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])]))


def _load(path: str, dtype: torch.dtype, trust_remote_code: bool) -> tuple[Any, list[str]]:
    """The family's own class with all of its weights, dropout off, and notes."""
    _check_config(path, _config(path, trust_remote_code))
    model, lacking = loaded_as(AutoModelForSequenceClassification, path, dtype, trust_remote_code)
    if lacking:
        raise ModelLoadError(
            f"{path}: {len(lacking)} weights are missing or of another shape: {lacking[:3]}. A score head that was never "
            "trained would give random rewards; take the folder of a trained reward model"
        )
    return model, _no_dropout(model)


def _check_config(path: str, config: Any) -> None:
    names = config.architectures or []
    if names and not any(name.endswith(SCORER) for name in names):
        raise ModelLoadError(
            f"{path}: {names[0]} has no head for a score. A reward model is a folder of a ...{SCORER} with one label, as "
            "reward-model training here and TRL's RewardTrainer write"
        )
    if config.is_encoder_decoder:
        raise ModelLoadError(f"{path}: an encoder-decoder; a reward model here is a decoder or an encoder")
    if config.num_labels != 1:
        raise ModelLoadError(
            f"{path}: {config.num_labels} labels ({', '.join(map(str, config.id2label.values()))}); a reward is one score per "
            "row: a model with num_labels=1 is needed"
        )


def _way(model: Any) -> tuple[Way, str]:
    """The fastest way of running that agrees with the model's own forward, and what to say of it."""
    register()
    text = model.config.get_text_config()
    pad = text.pad_token_id
    model.config.pad_token_id = text.pad_token_id = None  # else the family looks for the end by this id
    rows, own = _probe(text.vocab_size, layer_windows(text)), model.config._attn_implementation
    with torch.no_grad():
        truth_R = torch.cat([WholeModel(model, 0, False).scores([row], [0]) for row in rows])
    limit = LIMITS.get(model.dtype, HALF_LIMIT) * max(1.0, float(truth_R.abs().max()))
    name, head = type(model).__name__, _linear_head(model)
    if head is not None:
        fuse(model)
        for packing, padded in ((True, True), (False, True), (False, False)):
            model.set_attn_implementation(ATTENTION if packing else own)
            way = LastToken(_headed(model, head, packing, padded))
            if (not packing or _packable(way.model, rows)) and _gap(way, rows, truth_R) <= limit:
                model.set_submodule(head, nn.Identity())  # from here on it is the value head's alone
                return way, f"{name}: scored {'packed' if packing else 'with padding (slower)'}, checked"
    for padded in (True, False):
        way = WholeModel(model, 0 if pad is None else pad, padded)
        if _gap(way, rows, truth_R) <= limit:
            return way, f"{name}: scored {'with padding' if padded else 'row by row (slow)'}, checked"
    raise ModelRefused(f"{name}: no way of running it gives the scores of its own forward")


def _probe(vocabulary: int, windows: Sequence[int | None]) -> list[list[int]]:
    """Random rows, of which the first two share a prefix that is longer than a short sliding window."""
    shared = max((w + 3 for w in windows if w is not None and w <= 64), default=12)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (3, shared + 9), generator=generator).tolist()
    return [ids[0][: shared + 5], [*ids[0][:shared], *ids[1][shared:]], ids[2][: shared + 2]]


def _linear_head(model: Any) -> str | None:
    """The name of the head where it is one linear map to one number, without a bias, and all there is beside the backbone."""
    if model.base_model is model:
        return None
    inside = f"{model.base_model_prefix}."
    outside = {name: p for name, p in model.named_parameters() if not name.startswith(inside)}
    shapes = [tuple(p.shape) for p in outside.values()]
    if shapes != [(1, model.config.get_text_config().hidden_size)]:
        return None
    return next(iter(outside)).removesuffix(".weight")


def _headed(model: Any, head: str, packing: bool, padded: bool) -> PackedModel:
    made = PackedModel(model, kind="packed" if packing else "plain", padded=padded).eval()
    made.add_value_head()
    assert made.value_head is not None
    weight = model.get_submodule(head).weight
    made.value_head.to(torch.promote_types(weight.dtype, torch.float32)).requires_grad_(weight.requires_grad)
    with torch.no_grad():
        made.value_head.weight.copy_(weight)
    return made


def _packable(model: PackedModel, rows: Sequence[Sequence[int]]) -> bool:
    """Whether packing can be right at all: no state beside keys and values, and every layer hands its window down."""
    config = model.lm.config.get_text_config()
    if (
        model.lm._is_stateful
        or set(layer_types(config)) - KNOWN_LAYERS
        or model.lm.config._attn_implementation != ATTENTION
    ):
        return False
    packed, watched = _packed(rows, [0, 0, 1]), _Windows()
    watched.layout = PackedLayout(packed, model.device)
    try:
        with torch.no_grad():
            model.backbone(
                input_ids=packed.ids_N[None].to(model.device), position_ids=packed.position_N[None].to(model.device),
                use_cache=False, layout=watched,
            )  # fmt: skip
    except Exception:  # any failure inside a family's code only means that this way is closed for it
        return False
    return watched.seen == layer_windows(config)


class _Windows:
    """A `Layout` that notes the sliding window of every layer."""

    layout: Layout

    def __init__(self) -> None:
        self.seen: list[int | None] = []

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Tensor:
        """See `Layout`."""
        self.seen.append(rule.window)
        return self.layout.attend(q, k, v, rule)


@torch.no_grad()
def _gap(way: Way, rows: Sequence[Sequence[int]], truth_R: Tensor) -> float:
    """Largest distance from the truth of rows that run together; infinite where the family's code cannot do it at all."""
    chosen = [range(len(rows))] if not isinstance(way, WholeModel) or way.padded else [[r] for r in range(len(rows))]
    alike = [0, 0, 1]
    try:
        found = torch.cat([way.scores([rows[r] for r in part], [alike[r] for r in part]) for part in chosen])
    except Exception:  # any failure inside a family's code only means that this way is closed for it
        return float("inf")
    gap = float((found - truth_R).abs().max())
    return gap if gap == gap else float("inf")


def _untrained(ids: Sequence[int]) -> Row:
    return Row(list(ids), [False] * len(ids), [0.0] * len(ids), [-1] * len(ids))


def _packed(rows: Sequence[Sequence[int]], alike: Sequence[int]) -> Packed:
    return pack([[_untrained(row)] for row in rows], alike, whole=True)


def _by_length(rows: Sequence[Sequence[int]], budget: int) -> list[list[int]]:
    """Rows sorted by length, cut where a padded batch would be larger than the budget."""
    parts = list[list[int]]()
    for r in sorted(range(len(rows)), key=lambda r: len(rows[r])):
        if parts and (len(parts[-1]) + 1) * len(rows[r]) <= budget:
            parts[-1].append(r)
        else:
            parts.append([r])
    return parts
