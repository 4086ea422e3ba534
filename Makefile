# Each target does its own set-up: Python >= 3.11 with venv is all that must be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TYPING := $(VENV)/typing/rerail
PYTEST_WORKERS ?= auto
RIG := PYTHONPATH=tests/cluster $(BIN)/python -m rig
CLUSTER_NODES ?= 2
KUBECONFIG_OF_TESTS := /var/lib/rerail-cluster/kubeconfig
MYPY := MYPYPATH=$(VENV)/typing:tests/cluster $(BIN)/mypy --config-file pyproject.toml

# The last line of cluster-up is the path of the kubeconfig, also with `make -C`.
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help
.PHONY: help demo test lint types walls pytest bench bench-full cluster-up cluster-down cluster-test cluster-test-full cluster-stage clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Rerail needs Python >= 3.11; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.demo

$(TYPING)/.linked: | $(BIN)/python
	@mkdir -p $(TYPING)/examples
	@for room in policies plugins workflows; do ln -sfn ../../../$$room $(TYPING)/$$room; done
	@ln -sfn ../../../../examples/01-local-gang $(TYPING)/examples/local_gang
	@touch $@

demo: $(VENV)/.demo ## Run the main job: a gang of four real processes loses a GPU, resumes elsewhere, and proves it
	$(BIN)/rerail drill gpu --keep demo

test: lint types walls pytest $(if $(filter true,$(CI)),cluster-stage) ## Check everything (CI=true adds the full matrices and the cluster)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev $(TYPING)/.linked
	$(MYPY) -p rerail.policies -p rerail.plugins -p rerail.workflows -p rerail.examples.local_gang -p rig

walls: $(VENV)/.dev
	$(BIN)/lint-imports

pytest: $(VENV)/.dev
	$(BIN)/pytest -n $(PYTEST_WORKERS) $(if $(filter true,$(CI)),-m "not cluster")

# A real Kubernetes on this machine: root, Linux and Go. RERAIL_VOLCANO_BIN names the folder of Volcano's programs.
cluster-up: $(VENV)/.dev ## Bring the tests' cluster up; the kubeconfig's path is the last line (CLUSTER_NODES=2)
	@$(RIG) up --nodes $(CLUSTER_NODES)

cluster-down: $(VENV)/.dev ## Remove the cluster, and whatever a killed run left of it
	@$(RIG) down

cluster-test: $(VENV)/.dev ## Test on the cluster, a sample of the cases
	RERAIL_CLUSTER=sample $(BIN)/pytest -n 2 tests/cluster

cluster-test-full: $(VENV)/.dev ## Test on the cluster, all cases
	RERAIL_CLUSTER=full $(BIN)/pytest -n 2 tests/cluster

# What needs a cluster, on one that is brought up for it and removed again, whatever happens.
cluster-stage: $(VENV)/.dev
	@$(RIG) check || { echo "SKIPPED the cluster's stage: see the line above for what this machine lacks"; exit 0; }; \
	$(RIG) up --nodes $(CLUSTER_NODES) || { $(RIG) down; exit 1; }; \
	failed=0; \
	RERAIL_TEST_KUBECONFIG=$(KUBECONFIG_OF_TESTS) $(BIN)/pytest -m cluster --ignore=tests/cluster || failed=1; \
	RERAIL_CLUSTER=sample $(BIN)/pytest -n 2 tests/cluster || failed=1; \
	$(RIG) down; exit $$failed

bench: $(VENV)/.dev ## Measure beside competitors; writes tests/bench/results.json and the README's table (8 min, idle machine)
	$(BIN)/python -m tests.bench.run

bench-full: $(VENV)/.dev ## The same with 1 GiB and 100,000 checkpoints (an hour)
	$(BIN)/python -m tests.bench.run --full

clean: ## Remove what the other targets made in the checkout
	rm -rf $(VENV) demo build ./*.egg-info
