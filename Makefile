# `make help` lists the targets. Nothing is needed but Python 3.11+ and the package registries.
PYTHON ?= python3
# The CPU build. On a GPU machine: `make setup TORCH=torch`, or any build that pyproject.toml's range admits.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.installed

.PHONY: help setup demo test check format faults bench clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(SETUP)  ## make .venv and install everything, at the versions of constraints.txt

$(SETUP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(SETUP)  ## run the whole demo: data, two stages, evaluations, report
	$(BIN)/ncp run demo

test: $(SETUP)  ## run the test suite: whole runs, training and pure tests side by side
	$(BIN)/python -m pytest --numprocesses 3 --dist loadscope

check: $(SETUP)  ## format, lint, types, tests: what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --level error
	$(MAKE) test

format: $(SETUP)  ## rewrite the code in house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

faults: $(SETUP)  ## every fault, the long ones too; goes on where it was, writes docs/faults.md
	$(BIN)/python -m pytest -p tests.faults.record --numprocesses 2 --dist worksteal -m 'matrix or not matrix' --show-capture=no

bench: $(SETUP)  ## side-by-side benchmarks
	$(BIN)/python -m tests.benchmarks

clean:  ## remove the environment, caches and the demo's storage
	rm -rf $(VENV) ncp-store build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
