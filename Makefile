# Two commands matter: `make demo` and `make test`. Each builds .venv from nothing but Python 3.11 or later.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format environment docs

demo: environment
	$(BIN)/deepnet demo --out runs/demo

test: environment
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(PYTEST_OPTIONS)

check: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(BIN):$$PATH" $(BIN)/lint-imports
	$(BIN)/codespell

format: environment
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: environment
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/family_tree.py
	$(BIN)/python docs/adoption.py

environment: .venv/ready

# torch first and pinned, so that nothing else decides which build is taken
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "deepnet needs Python 3.11 or later; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@
