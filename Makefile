# The two commands of the README live here; everything runs from .venv.
#   make quickstart      install, then `elf run quickstart`
#   make test            format, lint, types, tests
#   make docs            the pages in docs/ as a site, in ./site
#   make ablations-smoke a small copy of every shipped ablation, run: about ten minutes on two cores
#   make docs-test       every shell block of README and docs, executed: about 20 minutes on two cores
# PYTHON=python3.12      another interpreter (3.11 or newer; found by itself if it has a usual name)
# TORCH_INDEX=https://download.pytorch.org/whl/cpu      a small torch for machines without a GPU
# OWN_TORCH=1            keep the torch (and numpy) that PYTHON already has
SHELL := /bin/bash
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
TORCH_INDEX ?=
OWN_TORCH ?=
VENV := .venv
BIN := $(VENV)/bin
# Without byte code every start of every process would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE
# --no-compile: Python compiles what is imported when it is; compiling all of torch takes longer than installing.
INSTALL := $(BIN)/python -m pip install -q --no-compile -c $(VENV)/constraints.txt

.PHONY: quickstart test test-slow docs docs-test ablations-smoke lint pins clean

quickstart: $(VENV)/installed
	$(BIN)/elf run quickstart

test: lint
	$(BIN)/pytest -q -n auto --maxprocesses 4 --dist loadfile

test-slow: $(VENV)/developing
	$(BIN)/pytest -q -m slow -n auto --maxprocesses 2 --dist loadfile --durations 25

docs: $(VENV)/developing
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-test: $(VENV)/developing
	$(BIN)/pytest -q -m docs tests/docs --durations 25

ablations-smoke: $(VENV)/developing
	$(BIN)/pytest -q -m ablations tests/ablations --durations 10

lint: $(VENV)/developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

$(VENV)/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "elf needs Python 3.11 or newer, and no python3 here is. Install one (Debian 12, \
	Ubuntu 24.04: apt install python3 python3-venv) or name yours: make quickstart PYTHON=/path/to/python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(if $(OWN_TORCH),--system-site-packages) $(VENV) || { rm -rf $(VENV); \
	echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV): about two minutes, more where torch is the CUDA build (gigabytes)."
	@grep -v $(if $(OWN_TORCH),-e '^torch==' -e '^numpy==',-e '^$$') constraints.txt > $(VENV)/constraints.txt
	@$(BIN)/python -m pip install -q "$$(grep '^pip==' constraints.txt)"
	@$(if $(TORCH_INDEX),$(INSTALL) --extra-index-url https://pypi.org/simple --index-url $(TORCH_INDEX) torch)
	@PYTHONWARNINGS=ignore $(INSTALL) -e .
	@touch $@

$(VENV)/developing: $(VENV)/installed
	@echo "Installing what the tests need."
	@$(INSTALL) -e '.[dev]'
	@touch $@

# Resolves pyproject.toml anew for every Python and platform; torch is pinned without a local version on purpose.
pins:
	echo 'torch==2.13.0' | uv pip compile pyproject.toml - --all-extras --universal --python-version 3.11 \
		--no-emit-index-url --custom-compile-command 'make pins' --upgrade -o constraints.txt

clean:
	rm -rf $(VENV) build *.egg-info
