"""What a model's configuration says about each of its layers."""

from __future__ import annotations

from typing import Any


def layer_types(config: Any) -> list[str]:
    """The declared kind of every layer; empty where all are alike."""
    return list(config.to_dict().get("layer_types") or [])


def layer_windows(config: Any) -> list[int | None]:
    """The sliding window of each layer, None where it sees everything."""
    values = config.to_dict()
    window, types = values.get("sliding_window"), layer_types(config)
    if types:
        return [window if kind == "sliding_attention" else None for kind in types]
    return [window if values.get("use_sliding_window") is not False else None] * config.num_hidden_layers
