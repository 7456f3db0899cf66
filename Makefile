# `make demo` and `make test` need only Python ≥ 3.11 and make; they build their own environment.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint format evidence clean
.DEFAULT_GOAL := demo

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[plot,test]'
	@touch $@

demo: $(VENV)/ready
	$(BIN)/python -m weft.demo

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

evidence: $(VENV)/ready
	$(BIN)/python -m benchmarks.learning

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
