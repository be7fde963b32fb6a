# `make demo` and `make test` need a Linux machine with Python 3.11 or newer and a package index; nothing else.
# `PYTHON=...` names another interpreter, `VENV=...` another environment.

VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
CACHE  := .cache

# The first interpreter that is new enough and can make environments. 3.11 first: it is what CI runs.
FIND_PYTHON = for name in python3.11 python3.12 python3.13 python3 python; do \
	if "$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then command -v "$$name"; exit 0; fi; done; exit 1
PYTHON ?= $(shell $(FIND_PYTHON))

# mypy sees the code under its import names: packages are given by name, from the root of the repository.
# Folders that hold no Python file yet are left out. Triton kernels are not typed; their specs are.
TYPED := $(foreach folder,compiler frontends passes backends runtime_min profiles, \
	$(if $(shell find $(folder) -name '*.py' 2>/dev/null),-p policyc.$(folder)))

.PHONY: demo test test-fast lint format install clean
.DEFAULT_GOAL := test

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "policyc needs Python 3.11 or newer; none found. Name one: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[compiler,cuda,plot,test]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m policyc.compiler.demo

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict $(TYPED)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: lint
	$(BIN)/python -m pytest -n 2

test-fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m 'not slow and not gpu'

clean:
	rm -rf $(VENV) $(CACHE) .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info
