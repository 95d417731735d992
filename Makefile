# Every target sets up what it needs, from Python 3.11+ and pip alone.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
BUDGET ?= 60s
TESTS ?= tests
WORKERS ?= auto
DEMO ?= examples/daemon

.PHONY: run demo test test-slow check bench simulate mutants peers guarantees lock clean

run: $(READY)  ## the daemon with a configuration that shows everything; Ctrl-C ends it, running it again goes on
	@DULY=$(BIN)/duly sh $(DEMO)/run.sh

demo: $(READY)  ## the library: a table of tasks, live; Ctrl-C ends it, running it again continues the story
	$(BIN)/duly demo --trace demo.jsonl

test: $(READY)  ## all the tests; TESTS=tests/unit for some of them
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(TESTS)

test-slow: $(READY)  ## fuzzers, flipped bits, thousands of simulated lives, every transition of every zone
	$(BIN)/python -m pytest -n auto -m slow -o faulthandler_timeout=3600

check: $(READY)  ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## speed and memory beside our peers, in one run
	$(BIN)/python benchmarks/run.py

simulate: $(READY)  ## random lives with every fault for a minute, then every crash point; BUDGET=10m for longer
	$(BIN)/python proof/guarantees.py --budget $(BUDGET)

mutants: $(READY)  ## break the scheduler in many small ways; each must be found
	$(BIN)/python mutants/run.py

peers: $(READY)  ## what other cron libraries do where it matters; writes docs/peers.md
	$(BIN)/python peers/run.py

guarantees: $(READY)  ## simulate, hunt mutants, and write down the numbers in docs/guarantees.md
	$(BIN)/python mutants/run.py --write
	$(BIN)/python proof/guarantees.py --budget $(BUDGET) --write

# Both locks hold for every Python and platform that duly supports, with the hashes of every file of a version. pip
# cannot write such a file; uv can, and lives only as long as this target. It asks PyPI, or what UV_INDEX_URL says.
COMPILE = $(VENV)-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock"

lock:  ## renew requirements.lock (duly with all extras) and requirements-dev.lock (its tools) from pyproject.toml
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet "uv>=0.8"
	$(COMPILE) pyproject.toml --all-extras --output-file requirements.lock
	$(COMPILE) --group dev --constraints requirements.lock --output-file requirements-dev.lock
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) $(VENV)-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# Wheels only: to build a source distribution, pip would fetch build tools that no hash vouches for. For the same
# reason duly itself is installed with the back-end from the lock, not with one that pip fetches.
$(READY): pyproject.toml requirements.lock requirements-dev.lock
	$(PYTHON) -c 'import sys; sys.exit("duly needs Python 3.11 or newer; try: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
		-r requirements.lock -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
