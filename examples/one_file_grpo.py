"""GRPO in one file: the whole loop, with the parts imported. Read it top to bottom, change a part, run it again.

usage: python examples/one_file_grpo.py [--steps 25] [--model smollm2-135m] [--algorithm grpo]

Left out, and in the library: checkpoints, held-out evaluation, rewards in killable processes, the run folder.
"""

import argparse
import time
from dataclasses import replace

import torch

from partita.algo.compose import compose
from partita.algo.presets import keys_of
from partita.algo.tokens import Current
from partita.engine.api import Draw, Request, Sampling
from partita.engine.config import compute_dtype
from partita.engine.local import LocalEngine
from partita.models.load import load_causal_lm
from partita.models.packed import cast_copy, weights
from partita.ops.packing import micro_batches, pack
from partita.records import Group, Sample
from partita.rollout.workflow import row_of
from partita.tasks.dataset import load_rows
from partita.tasks.prompt import render_prompts
from partita.tasks.settings import DatasetConfig
from partita.train.batch import collate

PROMPTS, SAMPLES, NEW_TOKENS, TEMPERATURE, SEED = 8, 8, 32, 1.0, 1


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--algorithm", default="grpo")
    args = parser.parse_args()

    # 1. A policy with float32 master weights, and a copy in the precision this machine multiplies fastest, to sample from.
    loaded = load_causal_lm(args.model, dtype=torch.float32)
    policy, tokenizer, fast = loaded.model, loaded.tokenizer, compute_dtype("auto", torch.device("cpu"))
    engine = LocalEngine(cast_copy(policy, fast), tokenizer, slots=PROMPTS * SAMPLES, context=512)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-5, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    # 2. An algorithm is a composition of parts; a preset names the keys of a paper. No reference model in this file.
    keys = replace(keys_of(args.algorithm), kl_loss_coef=0.0, kl_ctl=0.0, dynamic_sampling=None)
    algorithm = compose(keys, n_samples=SAMPLES, max_new_tokens=NEW_TOKENS)

    # 3. A task: rows with a question and an answer, and a function that says how good a response is.
    data = DatasetConfig(path="largest")
    rows = load_rows(data, seed=SEED)
    prompts = render_prompts(rows.rows, tokenizer, data, context=loaded.context, reserve=NEW_TOKENS).prompts
    (reward,) = rows.functions
    sampling = Sampling(max_new_tokens=NEW_TOKENS, temperature=TEMPERATURE, stop_ids=loaded.stop_ids)

    for step in range(args.steps):
        began = time.perf_counter()

        # Sample: token ids in, token ids out. All samples of a prompt share one prefill; text is only for the reward.
        groups = [Group(i, prompts[i % len(prompts)], []) for i in range(step * PROMPTS, (step + 1) * PROMPTS)]
        wanted = [(group, Draw(SEED, 0, group.serial, k)) for group in groups for k in range(SAMPLES)]
        futures = engine.submit([Request(group.prompt.ids, sampling, draw) for group, draw in wanted])
        for (group, _), future in zip(wanted, futures, strict=True):
            done = future.result()
            score = float(reward(response=done.text, answer=group.prompt.answer))
            group.samples.append(Sample([row_of(group.prompt.ids, done)], done.stop_reason, done.text, score))

        # Credit: once for all samples of the step. Weights: the aggregation, with its denominators, before any backward.
        rollout = collate(groups, seed=SEED, version=step)
        rollout = rollout.with_batch(algorithm.weights(algorithm.credit(rollout.batch)))

        # Learn: micro-batches of packed rows; each loss is a share of a weighted sum, so gradients just add up.
        for chosen in micro_batches(rollout.rows, rollout.group_of_sample, budget=4096):
            micro = rollout.select(chosen)
            with torch.autocast("cpu", dtype=fast, enabled=fast != torch.float32):
                streams = policy(pack(micro.rows, micro.group_of_sample), temperature=TEMPERATURE, entropy=True)
            algorithm.loss(micro.batch, Current(streams.logprobs_T, streams.entropy_T)).value.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

        # Publish: the engine samples the next step from the new weights.
        engine.publish(weights(policy), version=step + 1)
        rewards = [sample.reward or 0.0 for group in groups for sample in group.samples]
        print(
            f"step {step + 1:3d}  reward {sum(rewards) / len(rewards):.3f}  {time.perf_counter() - began:.1f} s",
            flush=True,
        )
    engine.close()


if __name__ == "__main__":
    main()
