# The two commands: `make demo` trains a real model, `make test` runs every test. Both set up .venv on a bare machine first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check long docs bench-step parity clean

$(READY): pyproject.toml
	$(PYTHON) scripts/setup_venv.py $(VENV)
	@touch $(READY)

demo: $(READY)  ## set up, then train SmolLM2-135M by GRPO on a built-in task, with visible progress
	$(BIN)/partita train examples/quickstart.yaml

test: $(READY)  ## every test except the minutes-long trainings
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not long" -n 2

check: $(READY)  ## lint, types, floors, fast tests: under 90 s
	$(BIN)/ruff check partita tests examples scripts benchmarks
	$(BIN)/ruff format --check partita tests examples scripts benchmarks
	$(BIN)/pyright --pythonpath $(BIN)/python
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
	$(BIN)/python scripts/families.py

BENCH := .venv-bench
$(BENCH)/.ready: pyproject.toml
	$(PYTHON) scripts/setup_venv.py $(BENCH) bench
	@touch $(BENCH)/.ready

bench-step: $(BENCH)/.ready  ## a GRPO step against TRL on the same machine, in one run, in an environment that has both
	$(BENCH)/bin/python benchmarks/step.py

parity: $(BENCH)/.ready  ## losses, advantages and corrections against TRL's and verl's own functions
	OMP_NUM_THREADS=1 $(BENCH)/bin/python -m pytest tests/parity

clean:
	rm -rf $(VENV) $(BENCH)
