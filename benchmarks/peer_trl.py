"""The peer of `step.py`: TRL's GRPOTrainer on the CPU, on the same prompts. Prints one JSON line with its step times.

usage: python benchmarks/peer_trl.py MODEL_FOLDER [--bf16] [--steps 3]          (needs trl==1.16.0)

Short workload: 8 prompts x 8 samples, about 45 prompt tokens, 32 new tokens, temperature 1, no KL term.
"""

import argparse
import json
import random
import tempfile
import time

import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

PROMPTS, SAMPLES, NEW_TOKENS = 8, 8, 32


def rows(count: int) -> list[dict[str, str]]:
    """The built-in task `largest`, worded as there."""
    draw = random.Random(0)
    lists = [[draw.randint(1, 99) for _ in range(4)] for _ in range(count)]
    return [
        {"question": f"What is the largest number in this list: {', '.join(map(str, n))}?", "answer": str(max(n))}
        for n in lists
    ]


def contains_answer(completions, answer, **_) -> list[float]:
    """1 where the answer stands in the text."""
    return [float(a in c[0]["content"]) for c, a in zip(completions, answer, strict=True)]


class StepClock(transformers.TrainerCallback):
    """Wall seconds between the begin and the end of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.lengths: list[float] = []

    def on_step_begin(self, *_, **__) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *_, **__) -> None:
        self.seconds.append(time.perf_counter() - self.began)

    def on_log(self, _args, _state, _control, logs=None, **__) -> None:
        if logs and "completions/mean_length" in logs:
            self.lengths.append(float(logs["completions/mean_length"]))


def main() -> None:
    """Train a few steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    data = [
        {"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]}
        for row in rows(PROMPTS * args.steps)
    ]
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=PROMPTS * SAMPLES, num_generations=SAMPLES,
            max_completion_length=NEW_TOKENS, learning_rate=1e-5, max_steps=args.steps, logging_steps=1, bf16=args.bf16,
            gradient_checkpointing=False, report_to=[], save_strategy="no", beta=0.0, temperature=1.0, use_cpu=True,
            dataloader_pin_memory=False, model_init_kwargs={"dtype": "float32"},
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=args.model, reward_funcs=contains_answer, args=config, train_dataset=Dataset.from_list(data)
        )
        trainer.add_callback(clock)
        trainer.train()
    print(json.dumps({"seconds": clock.seconds, "mean_length": clock.lengths}))


if __name__ == "__main__":
    main()
