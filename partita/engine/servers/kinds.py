"""Which kinds of servers there are: each is one module of this package that holds a `DIALECT`."""

from __future__ import annotations

import importlib
import pkgutil

import partita.engine.servers
from partita.engine.servers.api import Dialect

BUILTIN = "builtin"
FRAME = frozenset(
    {
        "addresses",
        "api",
        "client",
        "job",
        "kinds",
        "pool",
        "probe",
        "published",
        "serve",
        "vllm_transfer",
        "wire",
        BUILTIN,
    }
)
"""Modules that all kinds share, and the built-in engine's, which the config calls local; each other one is a kind."""


def server_kinds() -> tuple[str, ...]:
    """Every `rollout.backend` that is a server of other people's."""
    found = {module.name for module in pkgutil.iter_modules(partita.engine.servers.__path__)}
    return tuple(sorted(found - FRAME))


def dialect_of(backend: str) -> Dialect:
    """How servers of a `rollout.backend` are spoken to."""
    name = BUILTIN if backend == "local" else backend
    return importlib.import_module(f"partita.engine.servers.{name}").DIALECT
