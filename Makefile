# `make test` needs only Python ≥ 3.11 and make; it builds its own virtual environment.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: test lint format clean
.DEFAULT_GOAL := test

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@touch $@

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
