"""Write docs/areal.md and docs/zh/areal.md: what each config and switch of AReaL's algorithm page composes here.

usage: python scripts/areal_configs.py [--check]

The text stands in docs/src/areal.en.md and docs/src/areal.zh.md; the tables are made by loading every config with every
switch and giving credit to one fixed batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pages
import torch

from partita.algo.algorithm import Algorithm
from partita.algo.compose import compose
from partita.records import Batch
from partita.run import RunConfig, load_run_config

COMMAND = "scripts/areal_configs.py"
MATH = pages.ROOT / "examples" / "math"
# three prompts of four samples: mixed, graded, and all equal; lengths of any kind; a critic that says one half everywhere
REWARDS = [1.0, 0.0, 0.0, 1.0, 0.2, 0.5, 0.9, 0.2, 0.7, 0.7, 0.7, 0.7]
LENGTHS = [5, 9, 2, 4, 7, 3, 6, 1, 2, 8, 4, 3]
VALUE = 0.5


@dataclass(frozen=True)
class Row:
    """One line of the table: a config file and what the command line adds."""

    config: str
    switches: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """As it would be typed."""
        return " ".join((f"gsm8k_{self.config}.yaml", *self.switches))


DRGRPO = ("actor.adv_norm.mean_level=group", "actor.adv_norm.std_level=null")
SAPO = ("actor.use_sapo_loss=true", "actor.sapo_tau_pos=1.0", "actor.sapo_tau_neg=1.05")
ROWS = (
    Row("ppo"),
    Row("grpo"),
    Row("drgrpo"),
    Row("liteppo"),
    Row("rloo"),
    Row("gspo"),
    Row("dapo_dynamic_bs"),
    Row("sapo"),
    Row("grpo", DRGRPO),
    Row("grpo", ("actor.adv_norm.mean_level=group",)),
    Row("grpo", (*DRGRPO, "actor.adv_norm.mean_leave1out=true")),
    Row("grpo", ("+actor.importance_sampling_level=sequence",)),
    Row("grpo", (*(f"+{switch}" for switch in SAPO), "actor.use_decoupled_loss=false")),
    Row("grpo", ("+actor.eps_clip_higher=0.28",)),
    Row("grpo", ("actor.adv_norm=null", "actor.reward_norm={mean_level: group, std_level: group}")),
)


def load(row: Row) -> RunConfig:
    """The config as a run would see it."""
    return load_run_config([MATH / f"gsm8k_{row.config}.yaml"], [*row.switches, "scheduler.type=local"]).value


def algorithm(config: RunConfig) -> Algorithm:
    """Its composition."""
    return compose(config.actor, n_samples=config.gconfig.n_samples, max_new_tokens=config.gconfig.max_new_tokens)


def advantages(config: RunConfig) -> list[float]:
    """One number per sample of the fixed batch, on its first token."""
    seq_T = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    no_S = torch.zeros(len(LENGTHS), dtype=torch.bool)
    batch = Batch(
        seq_T, torch.arange(len(LENGTHS)) // 4, torch.tensor(REWARDS, dtype=torch.float64), no_S, ~no_S,
        prox_T=torch.full(seq_T.shape, -1.0), behaviour_T=torch.full(seq_T.shape, -1.0),
        values_T=torch.full(seq_T.shape, VALUE),
    )  # fmt: skip
    credited = algorithm(config).credit(batch)
    assert credited.advantages_T is not None, "credit sets them"
    starts = torch.cumsum(torch.tensor([0, *LENGTHS[:-1]]), 0)
    return [round(value, 3) + 0.0 for value in credited.advantages_T[starts].tolist()]


def parts(config: RunConfig) -> str:
    """What differs between the rows: credit, statistics, correction, ratio, gate, filter."""
    made = algorithm(config)
    norm = [] if made.norm is None else [f"A ← {made.norm.formula('A')}"]
    shaped = [part.formula() for part in made.shape]
    corrected = ["; ".join(part.formula() for part in made.correct)] if made.correct else []
    kept = [type(made.keep).__name__ + (" (dynamic_bs)" if config.dynamic_bs else "")]
    lines = [
        *(f"r ← {line}" for line in shaped), f"A = {made.assign.formula()}", *norm, *corrected,
        made.ratio.formula(), made.gate.formula(), *(kept if kept != ["KeepAll"] else []),
    ]  # fmt: skip
    return "<br>".join(line.replace("|", "\\|") for line in lines)


def table() -> str:
    """The rows as Markdown."""
    lines = ["| config and switches | parts | advantages |", "| --- | --- | --- |"]
    for row in ROWS:
        config = load(row)
        groups = [advantages(config)[i : i + 4] for i in range(0, len(REWARDS), 4)]
        shown = "<br>".join(", ".join(f"{value:g}" for value in group) for group in groups)
        lines.append(f"| `{row.title}` | {parts(config)} | {shown} |")
    return "\n".join(lines)


def generated() -> dict[Path, str]:
    """Each page's path and text."""
    docs = pages.ROOT / "docs"
    targets = {"en": docs / "areal.md", "zh": docs / "zh" / "areal.md"}
    batch = f"rewards {REWARDS}, lengths {LENGTHS}"
    made = f"<!-- made by {COMMAND} from docs/src/areal.%s.md and the code: edit those -->\n\n"
    return {
        path: made % code
        + (docs / "src" / f"areal.{code}.md")
        .read_text(encoding="utf-8")
        .replace("{{table}}", table())
        .replace("{{batch}}", batch)
        for code, path in targets.items()
    }


if __name__ == "__main__":
    pages.main(generated(), COMMAND, __doc__ or "")
