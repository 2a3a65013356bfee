# The two commands of the README live here; everything runs from .venv.
PYTHON ?= python3
TORCH_INDEX ?=
OWN_TORCH ?=
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart test test-slow lint pins clean

quickstart: $(VENV)/installed
	$(BIN)/elf run quickstart

test: lint
	$(BIN)/pytest -q

test-slow: $(VENV)/installed
	$(BIN)/pytest -q -m slow

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# OWN_TORCH=1 keeps the torch that PYTHON already has; TORCH_INDEX=https://download.pytorch.org/whl/cpu fetches a small one.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(if $(OWN_TORCH),--system-site-packages) $(VENV)
	grep -v $(if $(OWN_TORCH),-e '^torch==' -e '^numpy==',-e '^$$') constraints.txt > $(VENV)/constraints.txt
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt --extra-index-url https://pypi.org/simple --index-url $(TORCH_INDEX) torch)
	$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt -e '.[dev]'
	touch $@

# Resolves pyproject.toml anew for every Python and platform; torch is pinned without a local version on purpose.
pins:
	echo 'torch==2.13.0' | uv pip compile pyproject.toml - --all-extras --universal --python-version 3.11 \
		--no-emit-index-url --custom-compile-command 'make pins' --upgrade -o constraints.txt

clean:
	rm -rf $(VENV) build *.egg-info
