PYTHON ?= python3
VENV := .venv
DEMO_VENV := .venv-demo
BENCH_VENV := .venv-bench
RIG_ARGS ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=
BENCH ?= api blocks bocpd calibration capacity changes chaos chronic cost delivery exporter fleet gray hook huge_job jobs lemons linger peers pipeline place quality randomised real resolution restart rollups series soak startup storage streams stress transport transport_kill wire workers
# A slow test that passed on exactly this tree is not run again, except in CI and with FRESH=1.
UNCHANGED := $(if $(CI)$(FRESH),,-p unchanged)
# Processes: six share the time that tests wait for servers. Tests named by hand run one by one.
WORKERS ?= $(if $(PYTEST_ARGS),0,6)
# Tests without servers wait less: two processes for each core.
FAST_WORKERS ?= $(shell echo $$(($$(nproc) * 2)))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of processes, each of which would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo install lint test test-fast compiled services services-down screenshots bench rig lock

help: ## Show what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(DEMO_VENV)/installed ## Find a simulated straggler on this machine (DEMO_ARGS='--once --seed 7')
	@$(DEMO_VENV)/bin/slowrank demo $(DEMO_ARGS)

install: $(VENV)/installed ## Install slowrank and everything its tests need into .venv

lint: $(VENV)/installed ## Check style, types and which package imports which
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest -q --no-header tests/test_architecture.py

# With CI set a missing server is a failure, not a skip.
test: compiled ## Start real Kafka and TimescaleDB, run every test (PYTEST_ARGS='-k name', WORKERS=0: one by one)
	CI=1 PYTHONPATH=scripts $(VENV)/bin/python scripts/services.py run -- \
	  $(VENV)/bin/python -m pytest -p side_by_side -n $(WORKERS) $(UNCHANGED) $(PYTEST_ARGS)

test-fast: $(VENV)/installed ## Run the tests that need no server and take no more than seconds each
	PYTHONPATH=scripts $(VENV)/bin/python -m pytest -p side_by_side -n $(FAST_WORKERS) -m 'not integration and not slow' $(PYTEST_ARGS)

# The tests and the numba kernel, which the processes would otherwise compile all at the same time.
compiled: $(VENV)/installed
	@$(VENV)/bin/python -m pytest -qq --collect-only >/dev/null & \
	  $(VENV)/bin/python -c 'from streams.runtime.worker import compile_kernel; compile_kernel()'; wait

services: ## Start real Kafka and TimescaleDB on free loopback ports and print where they are
	@$(PYTHON) scripts/services.py up

services-down: ## Stop them
	@$(PYTHON) scripts/services.py down

bench: $(BENCH_VENV)/installed ## Run the benchmarks (BENCH='wire'); needs a C compiler for one competitor
	@set -e; for name in $(BENCH); do echo "# $$name"; \
	  PYTHONPATH=scripts $(if $(filter api transport,$(BENCH)),$(PYTHON) scripts/services.py run --) $(BENCH_VENV)/bin/python -m benchmarks $$name; done

screenshots: $(VENV)/installed ## Take the pictures of docs/images from the running demo (needs Chromium)
	@PYTHONPATH=scripts:. $(VENV)/bin/python scripts/screenshots.py

rig: compiled ## Make faults in real processes and network namespaces, as root (RIG_ARGS='--fault sigstop --runs 5')
	PYTHONPATH=scripts $(VENV)/bin/python -m benchmarks.rig $(RIG_ARGS)

lock: ## Pin the newest allowed dependencies, with hashes (needs uv)
	scripts/lock.sh --upgrade

$(VENV)/installed: requirements/dev.txt requirements/build.txt pyproject.toml
	@$(PYTHON) scripts/environment.py $(VENV) dev

$(DEMO_VENV)/installed: requirements/embedded.txt requirements/build.txt pyproject.toml
	@$(PYTHON) scripts/environment.py $(DEMO_VENV) embedded

$(BENCH_VENV)/installed: requirements/bench.txt requirements/build.txt pyproject.toml
	@$(PYTHON) scripts/environment.py $(BENCH_VENV) bench
