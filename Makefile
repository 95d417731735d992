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

test-slow: $(READY)  ## every transition of every zone, 1970-2037
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

lock:  ## renew requirements.lock from pyproject.toml
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet --upgrade "pip>=25.1"
	$(VENV)-lock/bin/pip install --quiet . --group dev
	$(VENV)-lock/bin/pip freeze --exclude duly --exclude pip | grep -v '^duly' > requirements.lock
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) $(VENV)-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit("duly needs Python 3.11 or newer; try: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@
