# `make quickstart` sets up everything and runs the main job on its embedded default. `make test` runs the tests.
# `make test-lowest` runs those that prove the lower bounds of pyproject.toml, with the lowest versions, in an environment
# of their own. Both environments are for CPUs, and DS_ACCELERATOR spares DeepSpeed its search for another device.
# PYTHON is the interpreter, VENV the environment's folder. JOBS test files run at a time, each in a process that imports
# everything: two on two cores, which tests of several ranks keep busy.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
LOWEST ?= .venv-lowest
PROVEN := tests/kernels tests/methods tests/models tests/analysis/test_tsne.py tests/pipeline/test_stages.py \
	$(addprefix tests/training/,test_engine.py test_gradients.py test_resume.py)

.PHONY: quickstart test test-lowest install
quickstart: install
	DS_ACCELERATOR=cpu $(BIN)/deepspeed --quiet scripts/train.py --ds_config ds_configs/zero1.json

test: install
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PROVEN)

install: $(VENV)/.installed

$(VENV)/.installed: requirements/cpu.txt pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(LOWEST)/.installed: requirements/lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements/lowest.txt
	touch $@
