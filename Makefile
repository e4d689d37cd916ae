# `make train` and `make test` do all their own set-up. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup setup-test train test test-ci test-all test-faults goldens-check fuzz audit lint format types imports site dist

CONFIG ?= configs/quickstart.yaml
ARGS ?=
QUICKSTART := configs/quickstart.yaml
# The quickstart is laid out for 8 devices, which a machine without a GPU pretends to have. With GPUs it takes them all.
LAYOUT = $(if $(filter $(QUICKSTART),$(CONFIG)),$(shell nvidia-smi >/dev/null 2>&1 && \
    echo --set parallel.fsdp=-1 --set parallel.tensor=1 --set parallel.context=1))
JOBS ?= 2
SECONDS ?= 600
# A Python that imports torch and transformers, which the tests do without.
TRANSFORMERS ?= python3

TEST_BIN := .venv-test/bin
# The tests run on virtual CPU devices; what XLA and Python compile for them is kept for the next run and its processes.
TEST_ENV := JAX_PLATFORMS=cpu JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 LLVM_DISABLE_SYMBOLIZATION=1 \
    JAX_COMPILATION_CACHE_DIR="$(CURDIR)/.venv-test/xla-cache" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.5 \
    PYTHONDONTWRITEBYTECODE=
PYTEST := $(TEST_ENV) $(TEST_BIN)/python -m pytest -n $(JOBS) --dist worksteal

help:
	@echo "make train [CONFIG=configs/quickstart.yaml] [ARGS='--set optimizer.name=muon']   train a model"
	@echo "make test [ARGS=tests/mesh]        the tests, without the long ones: some minutes"
	@echo "make test-ci                       the long ones, and rows of matrices drawn by the commit"
	@echo "make test-all                      every test: hours, before a release"
	@echo "make test-faults                   every seeded fault turns its tests red: hours"
	@echo "make goldens-check TRANSFORMERS=PYTHON [ARGS='--count 10 llama']   families against transformers, as drawn"
	@echo "make fuzz [SECONDS=600] [ARGS='--seed 0']   features combined at random, against one device"
	@echo "make lint format types imports     ruff, ruff format, pyright, the import layers"
	@echo "make site                           the pages as a site, in build/site/index.html; every link is checked"
	@echo "make dist                           a wheel and an sdist, in dist/"
	@echo "make audit                         known vulnerabilities of the versions in constraints.txt; asks pypi.org"
	@echo "make setup setup-test              make .venv and .venv-test only"

setup:
	@launch/setup.sh train

setup-test:
	@launch/setup.sh test

train: setup
	@.venv/bin/python -m jaxpar.train --config '$(CONFIG)' $(LAYOUT) $(ARGS)

test: setup-test
	@$(PYTEST) $(ARGS)

test-ci: setup-test
	@$(PYTEST) --level ci $(ARGS)

test-all: setup-test
	@$(PYTEST) --level all $(ARGS)

test-faults: setup-test
	@$(PYTEST) --level all tests/faults $(ARGS)

goldens-check: setup-test
	@$(TEST_ENV) $(TEST_BIN)/python -m tests.goldens.check --transformers '$(TRANSFORMERS)' $(ARGS)

# What it compiles is compiled once: the cache of the tests does not store it.
fuzz: setup-test
	@$(TEST_ENV) JAX_ENABLE_COMPILATION_CACHE=0 $(TEST_BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

lint: setup-test
	@$(TEST_BIN)/ruff check .
	@$(TEST_BIN)/ruff format --check .
	@$(TEST_BIN)/python tools/words.py

format: setup-test
	@$(TEST_BIN)/ruff check --fix .
	@$(TEST_BIN)/ruff format .

# pyright would ask the network for a newer version of itself.
types: setup-test
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(TEST_BIN)/pyright --pythonpath $(TEST_BIN)/python

# In an environment of its own, so that .venv-test holds what constraints.txt names and nothing else. CI does not run it:
# what it finds changes from day to day, whatever the commit.
audit:
	@test -x .venv-audit/bin/pip-audit || { "$$(launch/find_python.sh)" -m venv --clear .venv-audit && \
	    .venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit; }
	@.venv-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict $(ARGS)

imports: setup-test
	@$(TEST_BIN)/lint-imports

site: setup-test
	@$(TEST_ENV) $(TEST_BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going -c docs . build/site
	@echo "build/site/index.html"

dist: setup-test
	@$(TEST_BIN)/python -m hatchling build -d dist
