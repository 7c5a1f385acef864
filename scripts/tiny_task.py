"""A tiny model that half a minute of supervised training taught a format, and the task that it is then trained on.

The task: follow the arrows to their end. `AcBbCb:a` says that a points to c, b to itself and c to b, and asks where one
ends who starts at a. An answer is any number of steps, each the letter that the last one points to, then `=` and the
end: `cbb=b`. Too few steps are mostly wrong, more than enough do no harm, so answers can grow.
The taught answers stop at random, a fifth of their steps and a tenth of their ends are any letter: the model has the
format and the mistakes.

Left out: padding tricks and schedules beyond a warm-up; this is plain cross-entropy on random examples.

usage: python scripts/tiny_task.py FOLDER [SEED]
"""

import random
import sys
from pathlib import Path

import torch
from tiny_model import byte_tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from partita.tasks.catalog import Row, Split, Task, held_out

LETTERS = "abcdefghijkl"
ENDS = 3  # letters that point to themselves
STOP = 0.1  # chance that a taught answer stops before its next step
SLIP, MISREAD = 0.2, 0.1  # chance that a taught step, or end, is any letter
MOST_STEPS = 24
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
STEPS, BATCH, RATE, WARMUP = 400, 64, 4e-3, 50
IGNORED = -100  # targets that cross_entropy leaves out


def draw(rng: random.Random) -> str:
    """A question: where each letter points, and one of those furthest from an end to start at."""
    order = rng.sample(LETTERS, len(LETTERS))
    to = {letter: letter if i < ENDS else order[rng.randrange(i - 2, i)] for i, letter in enumerate(order)}
    return "".join(letter.upper() + to[letter] for letter in LETTERS) + ":" + rng.choice(order[-3:])


def arrows(question: str) -> dict[str, str]:
    """Where each letter points."""
    return dict(zip(question[0:-2:2].lower(), question[1:-2:2], strict=True))


def end_of(question: str) -> str:
    """The letter at which the arrows end."""
    to, at = arrows(question), question[-1]
    while to[at] != at:
        at = to[at]
    return at


def example(question: str, rng: random.Random) -> str:
    """An answer as it is taught: right in its format, and about one in three in its content."""
    to, at, steps = arrows(question), question[-1], ""
    while len(steps) < MOST_STEPS and rng.random() > STOP:
        at = rng.choice(LETTERS) if rng.random() < SLIP else to[at]
        steps += at
    return f"{steps}={rng.choice(LETTERS) if rng.random() < MISREAD else at}"


def right_end(response: str, answer: str) -> float:
    """1 where what follows the last `=` is the answer, else 0."""
    _, equals, given = response.rpartition("=")
    return float(bool(equals) and given == answer)


def task() -> Task:
    """The task as `train_dataset.path: scripts/tiny_task.py:task` names it."""

    def rows(split: Split, size: int | None, seed: int) -> list[Row]:
        rng, found = random.Random(f"arrows/{split}/{seed}"), dict[str, Row]()
        while len(found) < (2000 if size is None else size):
            question = draw(rng)
            if held_out("arrows", question) == (split == "test"):
                found[question] = {"question": question, "answer": end_of(question)}
        return list(found.values())

    return Task("arrows", rows, (right_end,))


def end_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """The id that ends an answer."""
    return tokenizer.encode("<eos>")[0]


def untaught(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A two-layer Llama of 98,000 parameters with random weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=128, eos_token_id=end_id(tokenizer),
        pad_token_id=end_id(tokenizer), bos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def batch_of(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and targets [BATCH, longest]: prompts and padding are no targets, the end of sequence is one."""
    end = end_id(tokenizer)
    rows: list[tuple[list[int], int]] = []
    while len(rows) < BATCH:
        question = draw(rng)
        if not held_out("arrows", question):
            ids = tokenizer.encode(question + example(question, rng))
            rows.append(([*ids, end], len(question)))
    longest = max(len(ids) for ids, _ in rows)
    ids_BN = torch.full((BATCH, longest), end)
    targets_BN = torch.full((BATCH, longest), IGNORED)
    for i, (ids, prompt) in enumerate(rows):
        ids_BN[i, : len(ids)] = torch.tensor(ids)
        targets_BN[i, prompt : len(ids)] = ids_BN[i, prompt : len(ids)]
    return ids_BN, targets_BN


def teach(folder: Path, seed: int = 0, steps: int = STEPS) -> float:
    """Write the taught model to `folder` and return its last cross-entropy, in nats per token."""
    logging.disable_progress_bar()
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    model, rng = untaught(tokenizer, seed), random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    loss = torch.tensor(0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / WARMUP, 1.05 - step / steps)
        ids_BN, targets_BN = batch_of(tokenizer, rng)
        logits_BNV = model(input_ids=ids_BN).logits[:, :-1]
        loss = cross_entropy(logits_BNV.flatten(0, 1), targets_BN[:, 1:].flatten(), ignore_index=IGNORED)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return float(loss.detach())


if __name__ == "__main__":
    print(f"last loss {teach(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0):.3f}")
