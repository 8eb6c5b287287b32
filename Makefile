# `make quickstart` sets everything up and runs the main job on its embedded default; `make test` passes the tests.
# PYTHON picks the interpreter, VENV the environment's folder, JOBS how many test files run at a time.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin

.PHONY: quickstart test install
quickstart: install
	$(BIN)/deepspeed scripts/train.py --ds_config ds_configs/zero2.json

test: install
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

install: $(VENV)/.installed

$(VENV)/.installed: requirements/cpu.txt pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
