"""A peer of `rollout.py`: `generate` of transformers with its own cache and attention.

usage (by the driver): hf_rollout.py MODEL float32|bfloat16
"""

from __future__ import annotations

import sys
import time

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging
from workers import Desk


@torch.inference_mode()
def generate(model, prompts: list[list[int]], new_tokens: int, seed: int) -> dict:
    """All prompts as one batch; they have one length, so nothing is padded."""
    torch.manual_seed(seed)
    ids = torch.tensor(prompts)
    began = time.perf_counter()
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
        max_new_tokens=new_tokens, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return {"seconds": time.perf_counter() - began, "tokens": (out.shape[1] - ids.shape[1]) * out.shape[0]}


def main() -> None:
    """Load, warm up, answer."""
    desk = Desk()
    logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=getattr(torch, sys.argv[2])).eval()
    model.generation_config.eos_token_id = None  # every response has the full length
    generate(model, [[1, 2, 3]] * 8, 4, seed=0)
    desk.ready()
    for question in desk.questions():
        desk.answer(generate(model, **question))


if __name__ == "__main__":
    main()
