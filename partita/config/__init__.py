"""Configuration as frozen dataclasses: declared beside each component, loaded from YAML, strict at the door."""

from partita.config.errors import ConfigError, Problem
from partita.config.layers import Expand
from partita.config.load import Loaded, load_config
from partita.config.reference import reference_markdown
from partita.config.schema import key, key_factory, required

__all__ = [
    "ConfigError",
    "Expand",
    "Loaded",
    "Problem",
    "key",
    "key_factory",
    "load_config",
    "reference_markdown",
    "required",
]
