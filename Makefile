# Nightshift: `make nightly` runs a whole day and night, `make test` the whole suite. Both set everything up first.
PYTHON ?= python3
PROFILE ?= cpu
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export HF_HUB_OFFLINE ?= 1

.PHONY: setup nightly test lint type bench ui docs lock clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile "$$(grep '^torch==' requirements.lock)"
	$(BIN)/python -m pip install --quiet --no-compile --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $(READY)

nightly: setup
	$(BIN)/nightshift --profile $(PROFILE) day
	$(BIN)/nightshift --profile $(PROFILE) night

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: setup
	$(BIN)/pyright

bench: setup
	$(BIN)/python -m tests.bench

ui: setup
	$(BIN)/nightshift ui

docs: setup
	$(BIN)/python -m flows.docs

lock:
	$(BIN)/pip freeze --exclude-editable | grep -v -i -E '^(nightshift|pip|setuptools|wheel)\b' | sed 's/^torch==.*/torch==2.13.0/' > requirements.lock

clean:
	rm -rf $(VENV) .nightshift
