#!/usr/bin/env bash
# The commands of README.md as written, with fewer steps where they train. Run from the repository's root after `make test`.
set -euo pipefail
export PATH="$PWD/.venv/bin:$PATH"
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
short=(output_dir="$runs" total_train_steps=2 train_dataset.batch_size=2 gconfig.n_samples=4)

say() { printf '\n$ %s\n' "$*"; }
try() { say "$@"; "$@"; }
drop() { (cd "$runs" && rm -r "$@"); } # runs that nothing below needs: each holds 1.5 GB or more

try partita train examples/quickstart.yaml "${short[@]}" trial_name=001
try partita train examples/quickstart.yaml algorithm=drgrpo "${short[@]}" total_train_steps=1 trial_name=drgrpo
try partita train examples/quickstart.yaml train_dataset.path=addition actor.optimizer.lr=1e-5 "${short[@]}" total_train_steps=1 trial_name=addition
drop quickstart/drgrpo quickstart/addition
try partita config examples/quickstart.yaml algorithm=dapo > "$runs/config.txt"
grep -q 'eps_clip_higher: 0.28' "$runs/config.txt"
try partita explain sapo --against dapo > "$runs/explain.txt"
grep -q 'arxiv.org/abs/2511.20347' "$runs/explain.txt"
try partita data examples/quickstart.yaml --rows 1 > "$runs/data.txt"
grep -q 'reward of nothing' "$runs/data.txt"
try partita eval "$runs/quickstart/001" --compare --n 16
try partita eval "$runs/quickstart/001" --compare --k 1,4,16 --n 4
try partita generate "$runs/quickstart/001" --prompt "What is the largest number in this list: 3, 41, 17, 28?"
try partita train --resume "$runs/quickstart/001" total_train_steps=3
try partita replay "$runs/quickstart/001" --step 2 --algorithm gspo
try partita export "$runs/quickstart/001" "$runs/my-model"
try python -c "from transformers import AutoModelForCausalLM as M; print(M.from_pretrained('$runs/my-model').num_parameters())"
try partita plan examples/quickstart.yaml --no-calibrate > "$runs/plan.txt"
grep -q ': fits' "$runs/plan.txt"
drop quickstart my-model

say 'beyond one process'
python scripts/tiny_model.py "$runs/tiny" # loaded twice, and tried here are the processes, not what is learned
try partita train examples/scale/two_learners.yaml "${short[@]}" total_train_steps=1 actor.path="$runs/tiny" trial_name=two
drop two-learners tiny
try partita launch examples/scale/vllm.yaml --dry-run > "$runs/launch.txt"
grep -q 'vllm.entrypoints.openai.api_server' "$runs/launch.txt"

say 'the Python example'
python - "$runs" <<'PY'
import sys

import partita


def right(response: str, answer: str) -> float:
    return float(response.strip().endswith(answer))


result = partita.train(
    model="smollm2-135m", task="addition", reward=right, algorithm="grpo", total_train_steps=1,
    output_dir=sys.argv[1], train_dataset__batch_size=2, gconfig__n_samples=4,
)
print(result)
PY
drop quickstart

say 'rows of your own in the layout of GSM8K'
try python3 examples/math/gsm8k_rl.py --config examples/math/gsm8k_grpo.yaml scheduler.type=local \
    actor.path=smollm2-135m train_dataset.path=tests/tasks/gsm8k_rows.jsonl output_dir="$runs" \
    total_train_steps=1 train_dataset.batch_size=2 gconfig.n_samples=2 gconfig.max_new_tokens=48
try python examples/one_file_grpo.py --steps 1
try python examples/one_file_ppo.py --quick
try partita train examples/stages.yaml output_dir="$runs" total_train_steps=2 train_dataset.batch_size=2 gconfig.n_samples=2
drop gsm8k-grpo stages

say 'several turns'
try partita train examples/workflows/guess.yaml "${short[@]}" total_train_steps=1
try partita train examples/workflows/agent.yaml "${short[@]}" total_train_steps=1
drop guess agent
try python examples/workflows/calculator_run.py --quick --check-ids --runs "$runs/calculator"
drop calculator

say 'from a base model to a policy'
try python examples/rlhf/make_data.py "$runs/data"
few=(output_dir="$runs" total_train_steps=2 train_dataset.size=16 train_dataset.batch_size=4 trial_name=001)
try partita sft "$runs/data/sft.jsonl" experiment_name=sft "${few[@]}"
try partita rm "$runs/data/preferences_train.jsonl" experiment_name=rm actor.path="$runs/sft/001/export" "${few[@]}"
try partita dpo "$runs/data/preferences_train.jsonl" experiment_name=dpo actor.path="$runs/sft/001/export" "${few[@]}"
drop dpo sft/001/checkpoints rm/001/checkpoints
for name in ppo grpo; do
    try partita train $name actor.path="$runs/sft/001/export" reward.model="$runs/rm/001/export" \
        train_dataset.path="$runs/data/prompts_train.jsonl" train_dataset.columns.answer=null "${short[@]}" \
        total_train_steps=1 gconfig.max_new_tokens=16 trial_name=rlhf
    drop $name
done

say 'the golden cases'
python tests/conformance.py tests/golden | tail -n 1
