"""A peer of `rollout.py`: vLLM on the CPU, in its own environment.

usage (by the driver): vllm_rollout.py MODEL eager|compiled [BLOCK_SIZE]     without a size vLLM takes its own, 128
"""

from __future__ import annotations

import sys
import time

from vllm import LLM, SamplingParams
from workers import Desk


def generate(llm: LLM, prompts: list[list[int]], new_tokens: int, seed: int) -> dict:
    """Token ids in, token ids out: without detokenisation, which ours does."""
    sampling = SamplingParams(temperature=1.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
    began = time.perf_counter()
    done = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "tokens": sum(len(one.outputs[0].token_ids) for one in done)}


def main() -> None:
    """Load, warm up at every size (shapes are compiled once), answer."""
    desk = Desk()
    llm = LLM(
        model=sys.argv[1], dtype="bfloat16", enforce_eager=sys.argv[2] == "eager", max_model_len=1024, max_num_seqs=128,
        disable_log_stats=True, **({"block_size": int(sys.argv[3])} if len(sys.argv) > 3 else {}),
    )  # fmt: skip
    for size in (8, 32, 64, 128):
        generate(llm, [[1, 2, 3 + k // 8] for k in range(size)], 4, seed=0)
    desk.ready()
    for question in desk.questions():
        desk.answer(generate(llm, **question))


if __name__ == "__main__":
    main()
