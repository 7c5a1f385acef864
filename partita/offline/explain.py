"""What a run on data learns, in words: what is minimised, what pulls on a token, and where both are from.

Left out: what each loss is good for; the pages docs/algorithms/sft.md, dpo.md and preferences.md say that.
"""

from __future__ import annotations

from collections.abc import Mapping

from partita.algo.bradley import BradleyTerry
from partita.algo.explain import Chapter, page, yaml
from partita.algo.objective import Row, first_sentence
from partita.algo.pairwise import Kto, PairLoss
from partita.algo.unified import METHODS
from partita.config.schema import plain
from partita.offline.config import DpoConfig, OfflineConfig, PreferenceLossConfig, RmConfig, SftConfig

COEFFICIENTS = {method.name: method.coefficient for method in METHODS}


def loss_text(config: OfflineConfig) -> str:
    """The loss on one line."""
    if isinstance(config, SftConfig):
        return f"-log π(answer), {config.loss_agg_mode}"
    loss = loss_of(config)
    return loss.formula() if isinstance(loss, BradleyTerry) else f"{_dpo(config).type}: {loss.formula()}"


def loss_of(config: OfflineConfig) -> BradleyTerry | PairLoss | Kto:
    """The part that computes it; not for SFT, whose loss is the log-likelihood."""
    if isinstance(config, RmConfig):
        return config.loss()
    section = _dpo(config)
    return section.kto() if section.type == "kto" else section.pair_loss()


def reference_text(config: OfflineConfig) -> str:
    """Which frozen policy answers are compared with, and when it is asked; nothing where the loss has none."""
    if not isinstance(config, DpoConfig) or not (config.loss.type == "kto" or config.loss.pair_loss().reference):
        return ""
    return f"{config.ref.path or 'the starting model'}, {config.ref.log_probs.replace('_', ' ')}"


def explained(title: str, config: OfflineConfig, *, markdown: bool = False) -> list[str]:
    """Lines on a config of `partita sft`, `rm` or `dpo`, in Markdown or as plain text for a terminal."""
    chapters = [
        Chapter("Objective", tuple(_objective(config)), formula=True),
        Chapter("Gradient coefficient", tuple(_coefficient(config)), formula=True),
        Chapter("Source", tuple(_source(config))),
        Chapter("Keys", tuple(_given(plain(config)))),
    ]
    return page(title, chapters, markdown=markdown)


def _dpo(config: OfflineConfig) -> PreferenceLossConfig:
    assert isinstance(config, DpoConfig)
    return config.loss


def _objective(config: OfflineConfig) -> list[Row]:
    rows = [("minimise", loss_text(config))]
    if isinstance(config, RmConfig):
        return [*rows, ("s_c, s_r", "scores of chosen and rejected at their last token; m: the pair's margin, else 0")]
    if isinstance(config, DpoConfig):
        compared = "log π/π_ref" if reference_text(config) else "log π"
        pairs = ("c, r", f"{compared} of chosen and rejected; h = c - r")
        rows += [("h", f"{compared} of the answer") if config.loss.type == "kto" else pairs]
        rows += [("π_ref", reference_text(config))]
        rows += [("pairs", "the policy's own answers, the best and the worst to each prompt" if config.online else "")]
    return [row for row in rows if row[1]]


def _coefficient(config: OfflineConfig) -> list[Row]:
    """Of DeepSeekMath's unified view, for the losses that it has."""
    if isinstance(config, SftConfig):
        return [("each token", COEFFICIENTS["SFT"])]
    if isinstance(config, DpoConfig) and config.loss.type == "sigmoid" and config.loss.label_smoothing == 0:
        return [("each token", COEFFICIENTS["DPO"])]
    return []


def _source(config: OfflineConfig) -> list[Row]:
    return [] if isinstance(config, SftConfig) else [("", first_sentence(loss_of(config)))]


def _given(settings: Mapping[str, object], prefix: str = "") -> list[Row]:
    """The keys of the loss, the reference and the optimizer."""
    rows = list[Row]()
    for name, value in settings.items():
        if isinstance(value, Mapping) and name in ("loss", "ref", "actor", "optimizer"):
            rows += _given(value, f"{prefix}{name}.")
        elif prefix in ("loss.", "ref.", "actor.optimizer.") or name in ("centring", "loss_agg_mode"):
            rows += [(f"{prefix}{name}", yaml(value))]
    return rows
