"""The configs of `partita sft`, `partita rm` and `partita dpo`: what the three share, and what is each one's own.

Left out: what the sections mean (each section's own docstring) and how a config becomes objects (`offline.build`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from partita.algo.bradley import BradleyTerry
from partita.algo.pairwise import Hinge, Ipo, Kto, Orpo, PairLoss, Robust, Sigmoid, Simpo
from partita.config import ConfigError, Loaded, key, key_factory, load_config
from partita.config.document import Given, parse
from partita.config.errors import Problem
from partita.config.schema import is_map
from partita.engine.config import GenerationConfig, RolloutConfig
from partita.launch.config import HINTS as LAUNCH_HINTS
from partita.launch.config import AllocationConfig, ClusterConfig, SchedulerConfig, check_servers
from partita.models.adapters import started_at_zero
from partita.report.config import ReportConfig
from partita.run import CheckpointConfig
from partita.tasks.files import SUFFIXES, kind_of
from partita.tasks.offline_rows import OfflineDataConfig
from partita.tasks.reward import RewardConfig
from partita.tasks.settings import DatasetConfig
from partita.train.config import LearnedModelConfig, Precision

HINTS = {
    "learning_rate": "actor.optimizer.lr",
    "beta": "loss.beta",
    "loss_type": "loss.type",
    "max_length": "train_dataset.max_length",
    "num_train_epochs": "total_train_epochs",
    "max_steps": "total_train_steps",
    "model": "actor.path",
    **LAUNCH_HINTS,
}
"""Names that other tools use."""


@dataclass(frozen=True)
class OfflineEvaluatorConfig:
    """Evaluation on `valid_dataset`, or on the rows that `train_dataset.held_out` holds out."""

    freq_steps: int | None = key(None, "train steps between evaluations; null evaluates once, at the end", ge=1)
    size: int | None = key(None, "held-out rows to use, the first ones; null for all", ge=1)


@dataclass(frozen=True)
class OfflineConfig:
    """What training on data shares, whatever is learned."""

    experiment_name: str = key("run", "first folder level under output_dir")
    trial_name: str | None = key(None, "second folder level; null takes the next free number")
    output_dir: str = key("runs", "where run folders are made")
    seed: int = key(1, "seed of the order of rows, and of adapters", ge=0, lt=2**32)
    total_train_epochs: int | None = key(1, "passes over train_dataset", ge=1)
    total_train_steps: int | None = key(None, "train steps; wins over total_train_epochs", ge=1)
    tokenizer_path: str | None = key(None, "tokenizer folder or name; null takes the model's own")
    scheduler: SchedulerConfig = key_factory(SchedulerConfig, "what starts processes, beyond one")
    allocation: AllocationConfig = key_factory(AllocationConfig, "who runs, how many, with what")
    cluster: ClusterConfig = key_factory(ClusterConfig, "on which machines")
    actor: LearnedModelConfig = key_factory(LearnedModelConfig, "the model that is trained")
    train_dataset: OfflineDataConfig = key_factory(OfflineDataConfig, "rows to train on")
    valid_dataset: OfflineDataConfig | None = key(
        None, "held-out rows; null takes those that train_dataset.held_out holds out"
    )
    checkpoint: CheckpointConfig = key_factory(CheckpointConfig, "resumable checkpoints")
    evaluator: OfflineEvaluatorConfig = key_factory(OfflineEvaluatorConfig, "evaluation on held-out rows")
    report: ReportConfig = key_factory(ReportConfig, "console, metric files, trackers")

    def __post_init__(self) -> None:
        if self.total_train_steps is None and self.total_train_epochs is None:
            raise ValueError("total_train_steps and total_train_epochs are both null: set one of them")
        if self.valid_dataset is not None and self.train_dataset.held_out > 0:
            raise ValueError(
                f"valid_dataset is set and train_dataset.held_out={self.train_dataset.held_out}: drop one of the two"
            )
        if self.valid_dataset is not None and self.valid_dataset.held_out > 0:
            raise ValueError(
                f"valid_dataset.held_out={self.valid_dataset.held_out}: all of its rows are held out; leave it 0"
            )

        self._check_engine()

    def _check_engine(self) -> None:
        if self.allocation.servers:
            raise ValueError(
                f"allocation.servers={self.allocation.servers}: nothing is sampled here, and a server would have nothing to do"
            )

    @property
    def command(self) -> str:
        """The command that the config belongs to: sft, rm or dpo."""
        return next(name for name, kind in KINDS.items() if isinstance(self, kind))


@dataclass(frozen=True)
class SftConfig(OfflineConfig):
    """Supervised fine-tuning: the log-likelihood of the answers."""

    kind: Literal["sft"] = key("sft", "what this run learns")
    loss_agg_mode: Literal["token_mean", "seq_mean_token_mean"] = key(
        "token_mean",
        "token_mean: every trained token of a step counts the same; seq_mean_token_mean: every conversation",
    )


@dataclass(frozen=True)
class RmConfig(OfflineConfig):
    """A reward model: Bradley-Terry on preferences; a pair's own margin, where the rows have one, is kept between them."""

    kind: Literal["rm"] = key("rm", "what this run learns")
    centring: float = key(0.0, "weight of (score of chosen + score of rejected)², which holds scores around 0", ge=0)

    def loss(self) -> BradleyTerry:
        """The loss of a pair."""
        return BradleyTerry(self.centring)


@dataclass(frozen=True)
class PreferenceLossConfig:
    """What a preference costs. Formulas and papers: docs/algorithms/preferences.md."""

    type: Literal["sigmoid", "hinge", "ipo", "robust", "simpo", "orpo", "kto"] = key(
        "sigmoid", "sigmoid is DPO's, with label_smoothing conservative DPO; kto takes judged answers instead of pairs"
    )
    beta: float = key(
        0.1, "strength of the pull to the reference; simpo: the scale of its rewards, often 2; orpo: its λ", gt=0
    )
    label_smoothing: float = key(
        0.0, "sigmoid, robust: the chance that a pair is labelled the wrong way round", ge=0, lt=0.5
    )
    gamma: float = key(0.5, "simpo: the margin that rewards shall have", ge=0)
    desirable: float = key(1.0, "kto: weight of good answers", gt=0)
    undesirable: float = key(1.0, "kto: weight of bad answers", gt=0)

    def __post_init__(self) -> None:
        if self.label_smoothing > 0 and self.type not in ("sigmoid", "robust"):
            raise ValueError(
                f"label_smoothing={self.label_smoothing} has no effect on type={self.type}: only on sigmoid, robust"
            )

    def pair_loss(self) -> PairLoss:
        """The loss of pairs; not of type kto."""
        made: dict[str, Any] = {
            "sigmoid": lambda: Sigmoid(self.beta, self.label_smoothing), "hinge": lambda: Hinge(self.beta),
            "ipo": lambda: Ipo(self.beta), "robust": lambda: Robust(self.beta, self.label_smoothing),
            "simpo": lambda: Simpo(self.beta, self.gamma), "orpo": lambda: Orpo(self.beta),
        }  # fmt: skip
        return made[self.type]()

    def kto(self) -> Kto:
        """The loss of judged answers."""
        return Kto(self.beta, self.desirable, self.undesirable)


@dataclass(frozen=True)
class FrozenReferenceConfig:
    """The frozen policy that preferences are compared with."""

    path: str | None = key(None, "its model; null is the model that training starts from")
    dtype: Precision = key("auto", "online: precision of its weights and forward pass")
    log_probs: Literal["precomputed", "online", "adapter_off"] = key(
        "precomputed",
        "precomputed: once for all rows before the first step, kept in the run folder, so that no second model stays in memory; "
        "online: a frozen copy is asked in every step; adapter_off: the model without its adapters is, which need to start at 0",
    )
    offload: bool = key(
        False,
        "online, on a GPU: its weights wait in main memory and are fetched in every step; on a CPU they are there already",
    )

    def __post_init__(self) -> None:
        if self.log_probs == "adapter_off" and self.path is not None:
            raise ValueError(f"log_probs=adapter_off is the trained model's own base, but path={self.path}: drop one")
        if self.offload and self.log_probs != "online":
            raise ValueError(f"offload has no effect with log_probs={self.log_probs}: no reference stays in memory")


@dataclass(frozen=True)
class OnlinePairsConfig:
    """Pairs of the policy's own answers: of the samples of a prompt the best and the worst, as the reward judges them."""

    prompts: DatasetConfig = key_factory(DatasetConfig, "what is asked; batch_size prompts in a train step")
    gconfig: GenerationConfig = key_factory(GenerationConfig, "how answers are sampled; n_samples of at least 2")
    rollout: RolloutConfig = key_factory(RolloutConfig, "the engine that samples")
    reward: RewardConfig = key_factory(RewardConfig, "the judge")

    def __post_init__(self) -> None:
        if self.gconfig.n_samples < 2:
            raise ValueError(f"gconfig.n_samples={self.gconfig.n_samples}: a pair needs two answers to a prompt")
        if self.gconfig.temperature == 0:
            raise ValueError("gconfig.temperature=0: all answers to a prompt are the same one, and no two make a pair")
        if self.gconfig.adaptive_n is not None:
            raise ValueError("gconfig.adaptive_n: every prompt gets n_samples answers here; leave it out")
        if self.rollout.max_head_offpolicyness > 0:
            raise ValueError("rollout.max_head_offpolicyness: this version samples and trains in turns; leave it out")
        if self.rollout.policy != "newest":
            raise ValueError(f"rollout.policy={self.rollout.policy}: pairs are the newest policy's own; leave it out")


@dataclass(frozen=True)
class DpoConfig(OfflineConfig):
    """Preference optimisation: DPO and its relatives."""

    kind: Literal["dpo"] = key("dpo", "what this run learns")
    loss: PreferenceLossConfig = key_factory(PreferenceLossConfig, "what a preference costs")
    ref: FrozenReferenceConfig = key_factory(FrozenReferenceConfig, "the reference; not loaded where the loss has none")

    online: OnlinePairsConfig | None = key(
        None,
        "pairs of the policy's own answers instead of train_dataset (online DPO); null: the pairs of train_dataset",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.online is not None:
            self._check_online()
        if self.ref.log_probs == "adapter_off" and self.actor.lora is None:
            raise ValueError(
                "ref.log_probs=adapter_off needs actor.lora: without adapters there is nothing to turn off"
            )
        if self.ref.log_probs == "adapter_off" and self.actor.lora and not started_at_zero(self.actor.lora):
            raise ValueError(
                f"ref.log_probs=adapter_off: with actor.lora.init={self.actor.lora.init} the model without its adapters is "
                "not the starting policy; take precomputed or online"
            )

    def _check_engine(self) -> None:
        if self.online is None:
            super()._check_engine()
        else:
            sampling = self.online.rollout
            check_servers(self.allocation, sampling.backend, sampling.servers, "online.rollout")

    def _check_online(self) -> None:
        if self.train_dataset.path is not None:
            raise ValueError(
                f"train_dataset.path={self.train_dataset.path} and online: pairs come from one of the two; drop one"
            )
        if self.loss.type == "kto":
            raise ValueError("loss.type=kto judges single answers, online makes pairs: take a loss of pairs")
        if self.ref.log_probs == "precomputed" and self.loss.pair_loss().reference:
            raise ValueError(
                "ref.log_probs=precomputed: online pairs are not known before; take online, or adapter_off with actor.lora"
            )


KINDS: dict[str, type[OfflineConfig]] = {"sft": SftConfig, "rm": RmConfig, "dpo": DpoConfig}
SAMPLED = ("algorithm", "gconfig", "rollout", "reward")
"""Sections of `partita train` alone."""


def load_offline_config(kind: str, target: str | Path, overrides: Sequence[str] = ()) -> Loaded[Any]:
    """The config of a command, from a YAML file, or from a file of rows with everything else as it is by default.

    Raises ConfigError naming every wrong key at once, and one line for a file of another command.
    """
    path = Path(target)
    files, words = ([], [f"train_dataset.path={path}"]) if kind_of(path) else ([path], [])
    if files and not path.exists():
        raise ConfigError(
            [Problem(str(target), f"no such file; `partita {kind}` takes a YAML file or rows ({', '.join(SUFFIXES)})")]
        )
    if files and (other := command_of(path)) not in (None, kind):
        raise ConfigError(
            [Problem(str(target), f"a config of `partita {other}`, not of `partita {kind}`: use that command")]
        )
    hints = {name: at for name, at in HINTS.items() if kind == "dpo" or not at.startswith("loss.")}
    return load_config(KINDS[kind], files=files, overrides=[*words, *overrides], hints=hints)


def command_of(file: Path) -> str | None:
    """Whose config a file says it is, `train` or a name in KINDS; None where it does not say."""
    try:
        found = parse(file.read_text(encoding="utf-8-sig"), str, [])
    except (OSError, UnicodeDecodeError):
        return None  # whoever loads it says what is wrong
    if not is_map(found):
        return None
    named = found.get("kind")
    if isinstance(named, Given) and named.value in KINDS:
        return str(named.value)
    return "train" if any(name in found for name in SAMPLED) else None
