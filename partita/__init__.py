"""Partita: reinforcement-learning post-training of language models, composed from small named parts.

`partita.train(...)` runs a whole training in one call, `partita.PPOTrainer` does it from a config. Both load on first use, so
that a reward's worker process, which needs neither, starts without torch.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"


class _Partita(ModuleType):
    """The package with two lazy names. `train` is also a sub-package: a property wins over the attribute that importing it sets."""

    @property
    def train(self) -> Any:
        return importlib.import_module("partita.trainer").train

    @train.setter
    def train(self, module: ModuleType) -> None:
        """The import system announces the sub-package here; it stays reachable as `partita.train.<module>` imports."""

    @property
    def PPOTrainer(self) -> Any:
        return importlib.import_module("partita.trainer").PPOTrainer


sys.modules[__name__].__class__ = _Partita
