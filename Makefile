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
PROVEN := $(addprefix tests/,kernels models analysis/test_report.py analysis/test_word_analyses.py texts serve/test_app.py \
	data/test_readers.py pipeline/test_run_folder.py training/test_gradients.py training/test_resume.py \
	training/test_tracking.py)

# Byte code is written at the first import. Without it every process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test test-lowest install
quickstart: install
	DS_ACCELERATOR=cpu $(BIN)/deepspeed --quiet scripts/train.py --ds_config ds_configs/zero1.json

test: install
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PROVEN)

install: $(VENV)/.installed

$(VENV)/.installed: requirements/lock.txt pyproject.toml setup.py tools/install.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/install.py $<
	touch $@

$(LOWEST)/.installed: requirements/lowest.txt pyproject.toml setup.py tools/install.py
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python tools/install.py $<
	touch $@
