"""Prefill by pieces of queries equals one masked attention over whole prompts."""

import pytest
import torch

from partita.engine import layouts
from partita.engine.layouts import PrefillLayout
from partita.models.attention import Rule, attend_masked


@pytest.mark.parametrize("window", [None, 1, 7, 150, 1000])
@pytest.mark.parametrize("scores", [1, 40_000, 1 << 30])
@pytest.mark.parametrize("queries", [1, 128, 300])
def test_pieces_equal_the_whole(monkeypatch, window, scores, queries):
    monkeypatch.setattr(layouts, "SCORES", scores)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(3, queries, heads, width, generator=generator, dtype=torch.float64).transpose(1, 2)
        for heads, width in ((6, 8), (2, 8), (2, 12))
    )
    behind = torch.arange(queries)[:, None] - torch.arange(queries)
    allowed = (behind >= 0) & (behind < (window or queries))
    layout, rule = PrefillLayout(), Rule(0.3, None, window, None)
    truth = attend_masked(q, k, v, allowed[None, None], rule).transpose(1, 2)
    for _ in range(2):  # every layer asks the same layout
        assert torch.allclose(layout.attend(q, k, v, rule), truth, atol=1e-12, rtol=0)
