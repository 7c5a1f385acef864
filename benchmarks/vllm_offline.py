"""A peer of `servers.py`: `LLM.generate` of vLLM in its own environment, on just what the client asks of a server.

usage (by the driver): vllm_offline.py OPTIONS    a JSON object of arguments of `LLM`; its questions hold seeds, one a prompt
"""

from __future__ import annotations

import json
import sys
import time

from vllm import LLM, SamplingParams
from workers import Desk


def generate(llm: LLM, prompts: list[list[int]], seeds: list[int], new_tokens: int) -> dict:
    """Token ids in; ids, and the log-prob of each, out."""
    sampling = [
        SamplingParams(temperature=1.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False, logprobs=0, seed=seed)
        for seed in seeds
    ]
    began = time.perf_counter()
    done = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
    seconds = time.perf_counter() - began
    ids = [list(one.outputs[0].token_ids) for one in done]
    return {"seconds": seconds, "tokens": sum(map(len, ids)), "ids": ids}


def main() -> None:
    """Load, warm up, answer."""
    desk = Desk()
    llm = LLM(**json.loads(sys.argv[1]), disable_log_stats=True)
    for size in (8, 64):
        generate(llm, [[1, 2, 3 + k // 8] for k in range(size)], list(range(size)), 4)
    desk.ready()
    for question in desk.questions():
        desk.answer(generate(llm, **question))


if __name__ == "__main__":
    main()
