# `make demo`, `make test` and `make docs` need only Python ≥ 3.11 and make; they build their own environment.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PEERS  := .venv-bench

.PHONY: demo test docs lint format evidence bench stability particles study-jsb study-physionet study-utd clean
.DEFAULT_GOAL := demo
PLAIN := exactness invariances finiteness image likelihoods objective textbook training estimator stream learning

NATIVE := CMakeLists.txt $(wildcard native/*)

$(VENV)/ready: pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[frames,plot,sklearn,video,test]'
	@touch $@

demo: $(VENV)/ready
	$(BIN)/python -m weft.demo

# The second run holds the same facts without the compiled scan.
test: lint
	$(BIN)/python -m pytest
	WEFT_NATIVE=off $(BIN)/python -m pytest --quiet $(addprefix tests/test_,$(addsuffix .py,$(PLAIN)))

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/docs: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean

evidence: $(VENV)/ready
	$(BIN)/python -m benchmarks.learning

bench: $(VENV)/ready
	$(BIN)/python -m benchmarks.bench

stability: $(VENV)/ready
	$(BIN)/python -m benchmarks.stability

particles: $(VENV)/ready
	$(BIN)/python -m benchmarks.particles

# Studies on real recordings, beside other libraries in an environment of their own.
$(PEERS)/ready: pyproject.toml constraints-bench.txt $(NATIVE)
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints-bench.txt --editable '.[bench]'
	@touch $@

study-jsb study-physionet study-utd: study-%: $(PEERS)/ready
	$(PEERS)/bin/python -m benchmarks.real.$*

clean:
	rm -rf $(VENV) $(PEERS) build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
