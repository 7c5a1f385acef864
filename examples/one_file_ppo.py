"""PPO in one file: a policy, a reference, a critic, and the seven steps that move them, in plain torch and transformers.

usage: python examples/one_file_ppo.py [--steps 12] [--model smollm2-135m] [--quick]

The task: go on with "Of the numbers 41, 17, 93 and 58, the largest is". Of Partita it takes only the model that needs no hub.
Each step has its formula and paper beside it.
Shapes: B samples, R response tokens (right of a row, padded on the right; `mask_BR` is 1 on the sampled tokens, the end of
turn included), V vocabulary.
Left out, and in the library: shared prefixes, packed rows without padding, float32 masters with a bf16 sampler,
checkpoints, held-out evaluation, a KL coefficient that follows a target, a value for responses that were cut off.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer
from transformers.utils import logging

from partita.models.embedded import NAME, embedded_folder

PROMPTS, QUICK_PROMPTS, NEW_TOKENS, SEED = 48, 8, 4, 1
EPOCHS, MINIBATCHES = 1, 2
DISCOUNT, LAMBDA = 1.0, 0.95
KL_COEF, ENTROPY_COEF = 0.02, 0.003
CLIP_LOW, CLIP_HIGH, DUAL_CLIP, VALUE_CLIP = 0.2, 0.2, 3.0, 0.2
POLICY_LR, CRITIC_LR = 2e-5, 5e-5


@dataclass
class Rollout:
    """What the steps of one batch leave behind; nothing in it has a gradient."""

    ids: Tensor  # [B, prompt + R]
    attention: Tensor  # [B, prompt + R], 0 on padding
    mask_BR: Tensor
    old_BR: Tensor  # log-probs of the policy that sampled
    values_BR: Tensor
    advantages_BR: Tensor
    returns_BR: Tensor

    def part(self, rows: Tensor) -> Rollout:
        """Some of the samples."""
        return Rollout(*(stream[rows] for stream in vars(self).values()))


def masked_mean(x_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """The mean over the sampled tokens of all samples: every token counts the same."""
    return (x_BR * mask_BR).sum() / mask_BR.sum().clamp(min=1)


def whiten(x_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """(x - mean) / sqrt(variance + 1e-8) over the sampled tokens, 0 on padding; the variance is the unbiased one."""
    mean = masked_mean(x_BR, mask_BR)
    variance = ((x_BR - mean).square() * mask_BR).sum() / (mask_BR.sum() - 1).clamp(min=1)
    return (x_BR - mean) * torch.rsqrt(variance + 1e-8) * mask_BR


def token_rewards(score_B: Tensor, old_BR: Tensor, ref_BR: Tensor, mask_BR: Tensor, kl_coef: float) -> Tensor:
    """r_t = -β (log π_old - log π_ref) on every token, and the score on the last one (Ziegler et al. 2019, arXiv 1909.08593,
    equation 2; Ouyang et al. 2022, arXiv 2203.02155, equation 2).
    """
    reward_BR = -kl_coef * (old_BR - ref_BR) * mask_BR
    last_B = mask_BR.sum(1).long() - 1
    reward_BR[torch.arange(len(score_B)), last_B] += score_B
    return reward_BR


def gae(reward_BR: Tensor, values_BR: Tensor, mask_BR: Tensor, discount: float, lam: float) -> tuple[Tensor, Tensor]:
    """δ_t = r_t + γ V_(t+1) - V_t, A_t = δ_t + γλ A_(t+1), returns A_t + V_t (Schulman et al. 2015, arXiv 1506.02438,
    equation 16). Nothing follows the last token, also where the length limit cut the response.
    """
    reward_BR, values_BR = reward_BR * mask_BR, values_BR * mask_BR
    advantages_BR = torch.zeros_like(values_BR)
    next_value_B = next_advantage_B = torch.zeros_like(values_BR[:, 0])
    for t in reversed(range(values_BR.shape[1])):
        delta_B = reward_BR[:, t] + discount * next_value_B - values_BR[:, t]
        advantages_BR[:, t] = next_advantage_B = delta_B + discount * lam * next_advantage_B
        next_value_B = values_BR[:, t]
    return advantages_BR, advantages_BR + values_BR


def value_loss(values_BR: Tensor, old_values_BR: Tensor, returns_BR: Tensor, mask_BR: Tensor, clip: float) -> Tensor:
    """½ max((V - R)², (clip(V, V_old ± ε) - R)²) (Schulman et al. 2017, arXiv 1707.06347, equation 9 without the clip; the
    clip is of openai/baselines, ppo2).
    """
    near_BR = old_values_BR + (values_BR - old_values_BR).clamp(-clip, clip)
    worse_BR = torch.maximum((values_BR - returns_BR).square(), (near_BR - returns_BR).square())
    return masked_mean(worse_BR, mask_BR) / 2


def policy_loss(
    new_BR: Tensor, old_BR: Tensor, advantages_BR: Tensor, mask_BR: Tensor, low: float, high: float, dual: float
) -> Tensor:
    """-min(ρA, clip(ρ, 1 - ε_low, 1 + ε_high) A), ρ = π/π_old (Schulman et al. 2017, arXiv 1707.06347, equation 7), and for
    A < 0 at most -cA: a token that became far more likely cannot pull without bound (dual clip, Ye et al. 2019, arXiv
    1912.09729, equation 5).
    """
    ratio_BR = (new_BR - old_BR).clamp(-20, 20).exp()  # before exp: padding and outliers stay finite
    clipped_BR = ratio_BR.clamp(1 - low, 1 + high)
    loss_BR = torch.maximum(-advantages_BR * ratio_BR, -advantages_BR * clipped_BR)
    bounded_BR = torch.minimum(loss_BR, -advantages_BR * dual)
    return masked_mean(torch.where(advantages_BR < 0, bounded_BR, loss_BR), mask_BR)


def positions(attention: Tensor) -> Tensor:
    """Positions that begin at each row's first real token."""
    return (attention.cumsum(1) - 1).clamp(min=0)


def score_tokens(policy: Any, ids: Tensor, attention: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [B, R] of the last `length` tokens, in float32 (the temperature is 1)."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = policy(ids, attention_mask=attention, position_ids=positions(attention), logits_to_keep=length + 1)
    logp_BRV = out.logits[:, :-1].float().log_softmax(-1)  # the logits before a token are its own
    entropy_BR = -(logp_BRV.exp() * logp_BRV).sum(-1)
    return logp_BRV.gather(-1, ids[:, -length:, None]).squeeze(-1), entropy_BR


def values_of(critic: Any, ids: Tensor, attention: Tensor, length: int) -> Tensor:
    """What is still to be won before each of the last `length` tokens [B, R], float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = critic(ids, attention_mask=attention, position_ids=positions(attention))
    return out.logits[:, -length - 1 : -1, 0].float()


def task(count: int, rng: random.Random) -> list[tuple[str, list[str]]]:
    """Texts to go on with, and their numbers, the largest one last."""
    lists = [[str(number) for number in rng.sample(range(10, 100), 4)] for _ in range(count)]
    return [(f"Of the numbers {', '.join(one[:3])} and {one[3]}, the largest is", sorted(one)) for one in lists]


def reward(response: str, numbers: list[str]) -> float:
    """By the first number in the response: 1 for the largest, 0.3 for another of the text, else 0."""
    found = re.search(r"\d+", response)
    return 0.0 if found is None or found[0] not in numbers else 1.0 if found[0] == numbers[-1] else 0.3


@torch.no_grad()
def rollout_of(
    policy: Any, reference: Any, critic: Any, tokenizer: Any, rows: list[tuple[str, list[str]]]
) -> tuple[Rollout, float]:
    """Steps 1 to 5 for one response to each text; also their mean score."""
    # 1. The policy samples. Prompts are padded on the left, so that responses begin in one column.
    prompt = tokenizer([text for text, _ in rows], padding=True, return_tensors="pt")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ids = policy.generate(
            input_ids=prompt["input_ids"], attention_mask=prompt["attention_mask"], max_new_tokens=NEW_TOKENS,
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
    response = ids[:, prompt["input_ids"].shape[1] :]
    ended = response == tokenizer.eos_token_id
    mask_BR = (ended.cumsum(1) - ended.long() == 0).float()  # up to the first end of text, itself included
    attention = torch.cat([prompt["attention_mask"], mask_BR.long()], 1)

    # 2. A reward function, or a model, scores whole responses.
    texts = tokenizer.batch_decode(response, skip_special_tokens=True)
    score_B = torch.tensor([reward(text, numbers) for text, (_, numbers) in zip(texts, rows, strict=True)])

    # 3. The reference, which never moves, makes drifting away from it cost something, token by token.
    length = response.shape[1]
    old_BR, _ = score_tokens(policy, ids, attention, length)
    ref_BR, _ = score_tokens(reference, ids, attention, length)
    reward_BR = token_rewards(score_B, old_BR, ref_BR, mask_BR, KL_COEF)

    # 4. The critic foretells what is still to come from each token on.
    values_BR = values_of(critic, ids, attention, length) * mask_BR

    # 5. Advantages, and the returns that the critic shall learn; whitened after the returns are taken.
    advantages_BR, returns_BR = gae(reward_BR, values_BR, mask_BR, DISCOUNT, LAMBDA)
    advantages_BR = whiten(advantages_BR, mask_BR)
    found = Rollout(ids, attention, mask_BR, old_BR, values_BR, advantages_BR, returns_BR)
    return found, float(score_B.mean())


def step(model: Any, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One optimizer step, the gradient's norm held to 1."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def learn(policy: Any, critic: Any, optimizers: tuple[torch.optim.Optimizer, ...], found: Rollout) -> dict[str, float]:
    """Steps 6 and 7, `EPOCHS` passes of `MINIBATCHES` each; what the last minibatch came to."""
    length, told = found.mask_BR.shape[1], dict[str, float]()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(found.ids)).chunk(MINIBATCHES):
            mini = found.part(rows)
            # 6. The critic learns the returns.
            values_BR = values_of(critic, mini.ids, mini.attention, length)
            of_values = value_loss(values_BR, mini.values_BR, mini.returns_BR, mini.mask_BR, VALUE_CLIP)
            step(critic, optimizers[1], of_values)

            # 7. The policy takes the clipped step; -c H keeps it from settling early (arXiv 1707.06347, equation 9).
            new_BR, entropy_BR = score_tokens(policy, mini.ids, mini.attention, length)
            of_policy = policy_loss(
                new_BR, mini.old_BR, mini.advantages_BR, mini.mask_BR, CLIP_LOW, CLIP_HIGH, DUAL_CLIP
            )
            entropy = masked_mean(entropy_BR, mini.mask_BR)
            step(policy, optimizers[0], of_policy - ENTROPY_COEF * entropy)
            told = {"value loss": of_values.item(), "entropy": entropy.item()}
    return told


def load(name: str) -> tuple[Any, Any, Any, Any]:
    """Policy, reference, critic (the policy's body with a head that says 0 everywhere) and tokenizer; no dropout."""
    logging.set_verbosity_error()  # that the critic's head is new is meant
    logging.disable_progress_bar()
    path = embedded_folder() if name == NAME else name
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    policy, reference = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for _ in range(2))
    critic = AutoModelForTokenClassification.from_pretrained(path, num_labels=1, dtype=torch.float32).eval()
    torch.nn.init.zeros_(critic.score.weight)
    torch.nn.init.zeros_(critic.score.bias)
    return policy, reference, critic, tokenizer


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--model", default=NAME)
    parser.add_argument("--quick", action="store_true", help="two small steps, to see that everything runs")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    policy, reference, critic, tokenizer = load(args.model)
    optimizers = tuple(
        torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        for model, lr in ((policy, POLICY_LR), (critic, CRITIC_LR))
    )
    steps, prompts = (2, QUICK_PROMPTS) if args.quick else (args.steps, PROMPTS)
    for number in range(1, steps + 1):
        began = time.perf_counter()
        found, score = rollout_of(policy, reference, critic, tokenizer, task(prompts, rng))
        told = learn(policy, critic, optimizers, found)
        line = "  ".join(f"{name} {value:.3f}" for name, value in {"reward": score, **told}.items())
        print(f"step {number:3d}  {line}  {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
