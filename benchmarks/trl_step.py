"""The peer of `step.py`: GRPO steps of TRL's own trainer on the CPU, one for each question.

usage (by the driver): trl_step.py MODEL short|long fixed|natural float32|bfloat16          (needs trl==1.16.0)

Master weights are float32, bfloat16 is TRL's `bf16=True`. A step is timed from `on_step_begin` to `on_step_end`: sampling,
rewards, forward, backward, optimizer; TRL's logging comes after it and is not counted.
"""

from __future__ import annotations

import sys
import tempfile
import time

import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from workers import Desk
from workload import LEARNING_RATES, WARM_UP, WORKLOADS, alternating, contains_answer, rows


def natural_reward(completions, answer, **_) -> list[float]:
    """1 where the answer stands in the text."""
    return [contains_answer(one[0]["content"], gold) for one, gold in zip(completions, answer, strict=True)]


def fixed_reward(completions, **_) -> list[float]:
    """Every group mixed, whatever was sampled."""
    return [alternating(index) for index in range(len(completions))]


class Gate(transformers.TrainerCallback):
    """Holds each step until the driver asks for it; those of the warm-up start by themselves."""

    def __init__(self, desk: Desk, samples: int) -> None:
        self.desk, self.questions, self.samples = desk, desk.questions(), samples
        self.began = self.seconds = 0.0

    def on_step_begin(self, _args, state, control, **_) -> None:
        if state.global_step == WARM_UP:
            self.desk.ready()
        if state.global_step >= WARM_UP and next(self.questions, None) is None:
            raise SystemExit
        self.began = time.perf_counter()

    def on_step_end(self, *_, **__) -> None:
        self.seconds = time.perf_counter() - self.began

    def on_log(self, _args, state, _control, logs=None, **__) -> None:
        if state.global_step > WARM_UP and logs and "completions/mean_length" in logs:
            tokens = self.samples * float(logs["completions/mean_length"])
            self.desk.answer({"seconds": self.seconds, "tokens": tokens, "reward": float(logs.get("reward", 0.0))})


def main() -> None:
    """Warm-up, then a step for each question."""
    desk = Desk()
    model, workload, kind, dtype = sys.argv[1:]
    load = WORKLOADS[workload]
    transformers.logging.set_verbosity_error()
    data = [{"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]} for row in rows(load)]
    samples = load.prompts * load.samples
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=samples, num_generations=load.samples,
            max_completion_length=load.new_tokens, learning_rate=LEARNING_RATES[kind], lr_scheduler_type="constant",
            max_steps=10_000, logging_steps=1, save_strategy="no", report_to=[],
            bf16=dtype == "bfloat16", gradient_checkpointing=False,
            beta=0.0, temperature=1.0, use_cpu=True, dataloader_pin_memory=False, shuffle_dataset=False,
            model_init_kwargs={"dtype": "float32"}, disable_tqdm=True,
            generation_kwargs={"min_new_tokens": load.new_tokens} if kind == "fixed" else None,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model, reward_funcs=fixed_reward if kind == "fixed" else natural_reward, args=config,
            train_dataset=Dataset.from_list(data),
        )  # fmt: skip
        trainer.add_callback(Gate(desk, samples))
        trainer.train()


if __name__ == "__main__":
    main()
