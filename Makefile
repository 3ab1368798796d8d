# make profile N=4096                              profile, judge and log one run (sets up .venv the first time)
# make profile N=64 PARAMS="dtype=float32 active=5"
# make profile EXPERIMENT=/path/to/own.yaml PARAMS="batch=8"
# make ui                                          MLflow's UI on this folder's store, on loopback
# make test | test-pythons | check | audit | bench | clean

PYTHON ?= python3
EXPERIMENT ?= matmul_add
PARAMS ?=
PORT ?= 5000
TESTS ?= tests
# One test file per worker, as many workers as cores. With TESTS everything runs in this process, so a debugger works.
PARALLEL = $(if $(filter tests,$(TESTS)),--numprocesses auto --dist loadfile --no-loadscope-reorder)

ifeq ($(EXPERIMENT),matmul_add)
N ?= 4096
endif

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
# Quoted for the shell: the folder's name may contain spaces.
WITH_VENV := PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/$(VENV)"
ASKED = $(if $(filter-out matmul_add,$(EXPERIMENT)),-P experiment='$(EXPERIMENT)') $(if $(N),-P n=$(N)) \
  $(foreach pair,$(PARAMS),-P '$(pair)')
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: profile test test-pythons check audit bench ui setup store clean
.DEFAULT_GOAL := profile

# proftrack creates the whole store before anything writes to it: runs that access a new one at once would break it.
# `mlflow run` alone would put every run into the experiment Default. It rejects an experiment name in the environment
# together with an id; that name was already used to determine the id.
profile: $(RUNTIME)
	@id=$$($(BIN)/python -m proftrack.cli.store --experiment-id '$(EXPERIMENT)') && \
	  env -u MLFLOW_EXPERIMENT_NAME $(WITH_VENV) $(BIN)/mlflow run . --env-manager local --experiment-id "$$id" $(ASKED)

store: $(RUNTIME)
	@$(BIN)/python -m proftrack.cli.store

ui: $(RUNTIME)
	@$(WITH_VENV) $(BIN)/python -m proftrack.cli.store --serve $(PORT)

# Compiled once: otherwise, if bytecode cannot be written, each of hundreds of test processes would compile it again.
test: $(DEV)
	@$(BIN)/python -m compileall -q profiling
	@$(BIN)/python -m pytest $(TESTS) -q $(PARALLEL)

# On Python 3.10 and 3.13, if they are installed; PYTHONS="3.12 3.14" for others.
test-pythons: $(RUNTIME)
	@scripts/test-other-pythons.sh

check: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python scripts/audit.py

# Known vulnerabilities of installed packages. If the advisory service cannot be reached, `check` passes and this fails.
audit: $(DEV)
	@$(BIN)/python scripts/audit.py --required

bench: $(DEV)
	@shopt -s nullglob; set -e; for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python "$$file"; done

setup: $(DEV)

# The stamp files make later calls start at once. The pins come from conda.yaml: the lines with `==`.
$(RUNTIME): conda.yaml pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "proftrack needs Python 3.10 or newer; name one with PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV) ..."; "$(PYTHON)" -m venv $(VENV); }
	@sed -n "s/^ *- *\"\{0,1\}\([A-Za-z0-9_.-]*==[^\"]*\)\"\{0,1\} *$$/\1/p" conda.yaml > $(VENV)/pins.txt
	@echo "Installing PyTorch, MLflow and the rest into $(VENV); this takes minutes, once ..."
	@$(BIN)/python -m pip install --quiet --requirement $(VENV)/pins.txt
	@$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

$(DEV): $(RUNTIME) requirements-dev.txt
	@echo "Installing the tools for tests and checks ..."
	@$(BIN)/python -m pip install --quiet --requirement requirements-dev.txt
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
