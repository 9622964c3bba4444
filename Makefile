# Every target installs what it needs on a fresh machine and is quick the second time.
# Pass more to pytest with ARGS, as in: make test ARGS="-k similarity"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RIVALS := $(VENV)/.rivals
DETECTORS := $(VENV)/.detectors
ENGINES := $(VENV)/.engines
DOCS := $(VENV)/.docs
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest
# One test process per core with one thread each: PyTorch's own threads would only compete for the cores.
PARALLEL := OMP_NUM_THREADS=1 $(PYTEST) -n auto

.DEFAULT_GOAL := help
.PHONY: help install test test-slow test-zoo test-accelerator test-engines check format demo docs docs-commands site-walk package bench \
	screenshots clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

install: $(INSTALLED)  ## make the virtual environment

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@

# The tools that Slimilar is compared with: only the benchmarks need them.
$(RIVALS): $(INSTALLED)
	$(PIP) -e '.[dev,rivals,detectors]'
	touch $@

# The library of the detectors: only the zoo needs it.
$(DETECTORS): $(INSTALLED)
	$(PIP) -e '.[dev,detectors]'
	touch $@

# Engines and the cluster that are optional: only their own tests need them.
$(ENGINES): $(INSTALLED)
	$(PIP) -e '.[dev,openvino,ray]'
	touch $@

# The site generator: only the documentation needs it.
$(DOCS): $(INSTALLED)
	$(PIP) -e '.[dev,docs]'
	touch $@

test: $(INSTALLED)  ## run the tests
	@scripts/ensure-browser
	$(PARALLEL) $(ARGS)

test-slow: $(INSTALLED)  ## run the tests that take minutes, and generated networks: benchmarks/results/fuzz.txt
	$(PYTEST) -m slow --timeout 3600 --ignore tests/zoo $(ARGS)
	PYTHONPATH=benchmarks $(BIN)/python benchmarks/fuzz.py

test-zoo: $(DETECTORS)  ## run the tests over whole model zoos
	$(PYTEST) -m slow --timeout 3600 tests/zoo $(ARGS)

test-accelerator: $(INSTALLED)  ## run the tests on the accelerator of this machine, or on a pretended one
	$(PYTEST) -m accelerator tests/accelerator $(ARGS)

test-engines: $(ENGINES)  ## run the tests of ONNX Runtime, OpenVINO and Ray; records benchmarks/results/engines.txt
	PYTHONPATH=benchmarks $(BIN)/python scripts/test_engines.py $(ARGS)

check: $(INSTALLED)  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	! git grep -nE '^(<{7}|>{7})( |$$)'  # what a merge leaves in files that no other check reads
	$(BIN)/mypy
	@# Against the standard library of the oldest Python; its other findings are about the stubs of newer packages.
	$(BIN)/mypy --python-version 3.10 --disable-error-code no-any-return --no-warn-unused-ignores src

format: $(INSTALLED)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(INSTALLED)  ## see it work
	$(BIN)/slimilar demo $(ARGS)

docs: $(DOCS)  ## build the documentation in site/; warnings are errors
	$(BIN)/python scripts/cli_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

docs-commands: $(INSTALLED)  ## run every command of the documentation in a fresh clone; DATA=FOLDER adds datasets
	PYTHONPATH=benchmarks $(BIN)/python scripts/docs_commands.py $(if $(DATA),--data "$(DATA)") $(ARGS)

site-walk: docs  ## take screenshots of every page of the documentation, and look for what can be checked
	@scripts/ensure-browser
	PYTHONPATH=benchmarks $(BIN)/python scripts/site_walk.py $(ARGS)

package: $(DOCS)  ## build wheel and sdist, run the demo from each in an empty environment; PYTHONS="python3.10 ..."
	PYTHONPATH=benchmarks $(BIN)/python scripts/check_package.py

bench: $(RIVALS)  ## run the benchmarks and write benchmarks/results/; DATA=FOLDER for those that need datasets
	$(BIN)/python scripts/bench.py $(if $(DATA),--data "$(DATA)") $(ARGS)

screenshots: $(INSTALLED)  ## draw the images in docs/images/
	@scripts/ensure-browser
	PYTHONPATH=benchmarks $(BIN)/python scripts/screenshots.py $(ARGS)

clean:  ## remove the virtual environment and all caches
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
