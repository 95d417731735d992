# Every target sets up what it needs, from Python 3.11+ and pip alone.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
RUN_VENV ?= $(VENV)-run
RUN_READY = $(RUN_VENV)/.ready
BUDGET ?= 60s
TESTS ?= tests
CORES = $(shell getconf _NPROCESSORS_ONLN)
# Many tests wait for processes and clocks: with two workers for each core they are done sooner.
WORKERS ?= $(shell expr 2 \* $(CORES))
N ?= 20
DEMO ?= examples/daemon

# Without bytecode each worker rewrites every test file, and each program that a test starts compiles duly again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run demo quick test test-slow repeat check house bench performance simulate mutants peers guarantees lock clean

run: $(RUN_READY)  ## the daemon with a configuration that shows everything; Ctrl-C ends it, running it again goes on
	@trap : INT; DULY=$(RUN_VENV)/bin/duly sh $(DEMO)/run.sh || [ $$? -eq 130 ] # 130: Ctrl-C, which is no error

demo: $(RUN_READY)  ## the library: a table of tasks, live; Ctrl-C ends it, running it again continues the story
	@trap : INT; $(RUN_VENV)/bin/python -m examples.demo --trace demo.jsonl || [ $$? -eq 130 ]

quick: $(READY)  ## unit and property tests without processes: at most a minute on two cores
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow and not heavy" tests/unit tests/property

test: $(READY)  ## all the tests; TESTS=tests/unit for some of them
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(TESTS)

test-slow: $(READY)  ## fuzzers, flipped bits, thousands of simulated lives, every transition of every zone; new random examples
	$(BIN)/python -m pytest -n auto -m "slow or hypothesis" -o faulthandler_timeout=3600

# Three workers for each core: tests that need a quiet machine fail here. The first failure ends it.
repeat: TESTS = tests/acceptance
repeat: WORKERS = $(shell expr 3 \* $(CORES))
repeat: $(READY)  ## the acceptance tests N=20 times on a busy machine; TESTS=tests/acceptance/test_kill.py for some
	@for round in $$(seq $(N)); do echo "round $$round of $(N)"; \
		$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow" $(TESTS) || exit 1; done

check: $(READY)  ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

house:  ## how large the code is, how it is split, and what is out of order
	@$(PYTHON) tools/house.py

bench: $(READY)  ## speed and memory beside our peers, in one run
	$(BIN)/python tools/benchmarks/run.py

performance: $(READY)  ## what of it docs/performance.md shows; writes that page and its charts
	$(BIN)/python tools/benchmarks/run.py --page

simulate: $(READY)  ## random lives with every fault for a minute, then every crash point; BUDGET=10m for longer
	$(BIN)/python -m tools.proof.guarantees --budget $(BUDGET)

mutants: $(READY)  ## break the scheduler in many small ways; each must be found
	$(BIN)/python tools/mutants/run.py

peers: $(READY)  ## what other cron libraries do where it matters; writes docs/peers.md
	$(BIN)/python tools/peers/run.py

guarantees: $(READY)  ## simulate, hunt mutants, and write down the numbers in docs/guarantees.md
	$(BIN)/python tools/mutants/run.py --write
	$(BIN)/python -m tools.proof.guarantees --budget $(BUDGET) --write

# All locks hold for every Python and platform that duly supports, with the hashes of every file of a version. pip
# cannot write such a file; uv can, and lives only as long as this target. It asks PyPI, or what UV_INDEX_URL says.
UPGRADE ?= --upgrade
COMPILE = $(VENV)-lock/bin/uv pip compile --quiet $(UPGRADE) --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock"

lock:  ## renew requirements.lock (duly with all extras), -daemon.lock (what `make run` needs of it), -dev.lock (tools); UPGRADE= to add only
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet "uv>=0.8"
	$(COMPILE) pyproject.toml --all-extras --output-file requirements.lock
	$(COMPILE) pyproject.toml --extra web --extra metrics --constraints requirements.lock \
		--output-file requirements-daemon.lock
	$(COMPILE) --group dev --constraints requirements.lock --output-file requirements-dev.lock
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) $(VENV)-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

NEW_ENOUGH = $(PYTHON) -c 'import sys; sys.exit("duly needs Python 3.11 or newer; try: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'

# Wheels only: to build a source distribution, pip would fetch build tools that no hash vouches for. For the same
# reason duly itself is installed with the back-end from the lock, not with one that pip fetches.
$(READY): pyproject.toml requirements.lock requirements-dev.lock
	@$(NEW_ENOUGH)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
		-r requirements.lock -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# The daemon alone needs few packages and no build tool: the sources are put on the path of the interpreter. Nothing is
# compiled ahead, because a start compiles only the modules that it imports. The pip that is there is used, if there is
# one: to install another takes longer than all the rest.
$(RUN_READY): requirements-daemon.lock
	@$(NEW_ENOUGH)
	@echo "Setting up $(RUN_VENV), this once: the packages that duly needs ..."
	@$(PYTHON) -m venv --clear --without-pip $(RUN_VENV)
	@pip="$(PYTHON) -m pip --python $(RUN_VENV)/bin/python"; \
	$$pip --version > /dev/null 2>&1 || { $(RUN_VENV)/bin/python -m ensurepip > /dev/null; pip=$(RUN_VENV)/bin/pip3; }; \
	$$pip install --quiet --no-compile --disable-pip-version-check --require-hashes --only-binary :all: \
		-r requirements-daemon.lock
	@echo '$(CURDIR)/src' > "$$($(RUN_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/duly.pth"
	@printf '#!/bin/sh\nexec "%s/python" -m duly "$$@"\n' '$(abspath $(RUN_VENV))/bin' > $(RUN_VENV)/bin/duly
	@chmod +x $(RUN_VENV)/bin/duly
	@touch $@
	@echo "Ready."
