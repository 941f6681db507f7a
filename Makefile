# `make help` lists the targets. Every target sets up what it needs.
#
#   make search PRESET=smoke             another budget
#   make search ARGS="--seed 3 --quiet"  any option of `nas search`
#   make test ARGS="-k pareto"           any option of pytest
#   make clean install TORCH=torch       the newest torch instead of the pinned one
#   make install PYTHON=python3.12       another interpreter

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
SPACE ?= digits
PRESET ?=
ARGS ?=
# Installed first and by itself: the build that is there already is kept by everything after it.
TORCH ?= $(shell grep '^torch==' constraints.txt)
WORKERS ?= 8

# Byte code is written even where the environment says otherwise: the tests start hundreds of
# processes, and each would compile what it loads.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
PACKAGES := search_spaces supernet latency nas service experiments
# The first interpreter that runs and is new enough.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
# Without torch's line, so that TORCH has the only word on it.
INSTALL := $(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt
# Running tests on one thread a process is faster than all processes fighting for all cores. Each
# process keeps neighbours together, which share what their file makes, and takes over at the end.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses=$(WORKERS) \
	--dist worksteal

# fairseq has an environment of its own: it fixes versions that nothing else here should be held to.
# It is built from source, for minutes; the wheel is kept for the next time, for each build of torch.
FAIRSEQ_VENV ?= .venv-fairseq
FAIRSEQ_BIN := $(FAIRSEQ_VENV)/bin
FAIRSEQ_WHEELS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/nas-service/fairseq
FAIRSEQ_JOBS ?= 2
FAIRSEQ_PIP := $(FAIRSEQ_BIN)/python -m pip install --quiet \
	--constraint $(FAIRSEQ_VENV)/constraints.txt

.PHONY: help install install-dev search serve test coverage test-slow test-fairseq test-gpu lint format clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

install: $(VENV)/.installed ## Make .venv with the command nas in it

install-dev: $(VENV)/.installed-dev ## The same, with what the checks need

search: $(VENV)/.installed ## Search the space of the handwritten digits (SPACE, PRESET, ARGS)
	$(BIN)/nas search --space $(SPACE) $(if $(PRESET),--preset $(PRESET)) $(ARGS)

serve: $(VENV)/.installed-service ## Serve searches over HTTP at 127.0.0.1:8321 (ARGS)
	$(BIN)/nas serve $(ARGS)

test: $(VENV)/.installed-dev ## Run the fast tests and say how long they took (ARGS)
	@SECONDS=0; code=0; $(PYTEST) $(ARGS) || code=$$?; \
	echo "The tests took $$((SECONDS / 60)) min $$((SECONDS % 60)) s."; exit $$code

coverage: $(VENV)/.installed-dev ## The same, and print which lines they do not reach (ARGS)
	$(PYTEST) --cov --cov-report=term-missing:skip-covered $(ARGS)

test-slow: $(VENV)/.installed-dev ## Run every test this machine can run (ARGS)
	$(PYTEST) --run-slow --run-e2e $(ARGS)

test-fairseq: $(FAIRSEQ_VENV)/.installed ## Build fairseq, once, and run the tests that need it (ARGS)
	OMP_NUM_THREADS=1 $(FAIRSEQ_BIN)/python -m pytest -m fairseq --run-slow \
		tests/nas/fairseq $(ARGS)

test-gpu: $(VENV)/.installed-dev ## Run what needs a graphics card, and measure what it does (ARGS)
	$(BIN)/python -m pytest -m gpu --run-slow tests/supernet tests/latency tests/nas
	$(BIN)/python -m experiments.gpu_suite $(ARGS)

lint: $(VENV)/.installed-dev ## Check style, layout and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(PACKAGES)

format: $(VENV)/.installed-dev ## Mend style and layout where that is possible
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv and caches; runs stay
	rm -rf $(VENV) $(FAIRSEQ_VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip alone decides whether anything is missing, so a target that is run again costs seconds; the
# stamps save even those while pyproject.toml and constraints.txt stay as they are.
$(VENV)/.installed: pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or newer was found; install one, or name it: make install PYTHON=..." >&2; \
		exit 1; fi
	@if [ ! -x $(BIN)/pip ]; then $(PYTHON) -m venv --clear $(VENV); fi
	@grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(INSTALL) '$(TORCH)'
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-service: $(VENV)/.installed
	$(INSTALL) --editable '.[service]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev,experiments]'
	@touch $@

# By itself, so that it can be built while other things go on; it says where the wheel is.
$(FAIRSEQ_VENV)/.wheel: constraints.txt .ci/fairseq-wheel
	@if [ -z "$(PYTHON)" ]; then echo "No Python 3.11 or newer was found" >&2; exit 1; fi
	@if [ ! -x $(FAIRSEQ_BIN)/pip ]; then $(PYTHON) -m venv --clear $(FAIRSEQ_VENV); fi
	@grep -v '^torch==' constraints.txt > $(FAIRSEQ_VENV)/constraints.txt
	$(FAIRSEQ_PIP) '$(TORCH)' cython numpy setuptools wheel
	@.ci/fairseq-wheel $(FAIRSEQ_BIN)/python $(FAIRSEQ_VENV)/constraints.txt \
		"$(FAIRSEQ_WHEELS)" $(FAIRSEQ_JOBS) > $@.tmp
	@mv $@.tmp $@

$(FAIRSEQ_VENV)/.installed: $(FAIRSEQ_VENV)/.wheel pyproject.toml
	$(FAIRSEQ_PIP) --find-links "$$(cat $(FAIRSEQ_VENV)/.wheel)" \
		--editable '.[fairseq]' hypothesis pytest
	@touch $@
