# make demo   one real training: launched, diverging, rewound, healthy again
# make test   linters, types and the whole suite
# Each makes its own environment first and may be the first command on a fresh machine with Python 3.11.
#
# The pins in constraints.txt name no build of torch. pip takes the one your package sources offer; on a machine
# without a GPU point PIP_FIND_LINKS, PIP_INDEX_URL or PIP_EXTRA_INDEX_URL at torch's CPU builds, which are far smaller.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test lint format constraints clean slurm-lab system

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/.demo ## Watch a small real training diverge, be rewound and recover
	$(BIN)/m4ops demo

test: $(VENV)/.test system lint ## Linters, mypy and all tests
	$(BIN)/pytest -n 2 --dist worksteal --durations 10

lint: $(VENV)/.test ## ruff and mypy --strict, changing nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.test ## Let ruff mend and lay out the source
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# To move on: `.venv/bin/pip install -U NAME …`, `make test`, `make constraints`, and commit the result.
# The local part of a version (torch's +cpu) differs from machine to machine and is left out.
constraints: ## Pin what .venv holds now in constraints.txt
	@echo '# Made by `make constraints`: the versions m4ops is developed and tested with.' > constraints.new
	$(BIN)/pip list --disable-pip-version-check --format=freeze --exclude-editable --exclude m4ops --exclude pip \
		| sed 's/+[A-Za-z0-9.]*$$//' >> constraints.new
	@mv constraints.new constraints.txt

clean: ## Remove caches, builds and the environment
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find ops tests bench -name __pycache__ -prune -exec rm -rf {} +

# eval "$(make -s slurm-lab NODES=8)"; sbatch …; python -m tests.slurm_lab kill n2; python -m tests.slurm_lab down
slurm-lab: system ## Bring up a real Slurm cluster here; prints the SLURM_CONF to export
	@$(PYTHON) -m tests.slurm_lab up --nodes $(or $(NODES),4)

# Never slurm-wlm-emulator: it replaces the real daemons by front-end ones, which do not run.
system:
	@PATH="$$PATH:/usr/sbin:/sbin" .ci/debian shellcheck=shellcheck cron=crontab logrotate=logrotate \
		slurmctld=slurmctld slurmd=slurmd slurm-client=sbatch munge=munged \
		slurmdbd=slurmdbd slurm-wlm-mysql-plugin=slurmdbd mariadb-server-core=mariadbd mariadb-client-core=mariadb

$(BIN)/pip:
	@$(PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' || .ci/debian python3-venv=
	$(PYTHON) -m venv $(VENV)

# torch comes first and alone: whatever depends on it then finds it there, and cannot pull in another build of it.
# Of torchtitan and Megatron the tests need the checkpointer and the scheduler alone, not what trains with them: --no-deps.
# Sources are built with the pinned tools, not with the newest of the day: hence no build isolation.
$(VENV)/.torch: constraints.txt | $(BIN)/pip
	$(PIP) torch setuptools hatchling
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) --no-build-isolation --editable '.[demo]'
	@touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml
	$(PIP) --no-build-isolation --use-pep517 --editable '.[test,deepspeed]'
	$(PIP) --no-deps torchtitan tyro docstring-parser spmd-types megatron-core
	@touch $@ $(VENV)/.demo
