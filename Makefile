# Every target makes what it needs on a fresh machine and is quick the second time.
# Pass more to pytest with ARGS, as in: make test ARGS="-k similarity"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RIVALS := $(VENV)/.rivals
DETECTORS := $(VENV)/.detectors
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help install test test-slow test-zoo check format demo bench screenshots clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

install: $(INSTALLED)  ## make the virtual environment

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The tools we are measured against are wanted by the benchmarks alone.
$(RIVALS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,rivals,detectors]'
	touch $@

# Detectors bring a library of their own, for the zoo alone.
$(DETECTORS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,detectors]'
	touch $@

test: $(INSTALLED)  ## run the tests
	@scripts/ensure-browser
	$(PYTEST) $(ARGS)

test-slow: $(INSTALLED)  ## run the tests that take minutes
	$(PYTEST) -m slow --timeout 3600 --ignore tests/zoo $(ARGS)

test-zoo: $(DETECTORS)  ## run the tests over whole model zoos
	$(PYTEST) -m slow --timeout 3600 tests/zoo $(ARGS)

check: $(INSTALLED)  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)  ## put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(INSTALLED)  ## see it work
	$(BIN)/slimilar demo $(ARGS)

bench: $(RIVALS)  ## run every benchmark and write benchmarks/results/
	@mkdir -p benchmarks/results
	@set -e; for script in benchmarks/[a-z]*.py; do \
		result=benchmarks/results/$$(basename $$script .py).txt; \
		echo "$$script -> $$result"; \
		$(BIN)/python $$script > $$result.part && mv $$result.part $$result; \
		cat $$result; \
	done

screenshots: $(INSTALLED)  ## draw the images in docs/images/
	@scripts/ensure-browser
	PYTHONPATH=benchmarks $(BIN)/python scripts/screenshots.py $(ARGS)

clean:  ## remove the virtual environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
