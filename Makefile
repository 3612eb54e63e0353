# Two commands do everything: `make audit` and `make test`. Each sets up .venv on first use and not again. `make test-slow`
# runs the tests that every change need not wait for.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is imported is compiled then; of the rest nobody needs bytecode, and it takes a minute and a half to make.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
OUT ?= fedseal-audit
# Where this is set, every process compiles PyTorch anew, three seconds each, and the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: audit test test-slow lint docs bench campaign clean

audit: $(VENV)/.installed  ## audit a small federation on embedded data and leave a report
	$(BIN)/fedseal audit --out $(OUT)

test: $(VENV)/.installed-dev  ## run the tests that every change must pass
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-slow: $(VENV)/.installed-dev  ## run the tests that take long: see CONTRIBUTING.md
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

lint: $(VENV)/.installed-dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev  ## build the documentation into build/site; a warning, a broken link among them, is an error
	$(BIN)/sphinx-build -W --keep-going -q -d build/doctrees docs build/site
	@echo "documentation: build/site/index.html"

bench: $(VENV)/.installed-dev  ## run every benchmark; results go to bench/out
	@for script in bench/*.py; do $(BIN)/python $$script || exit 1; done

campaign: $(VENV)/.installed-dev  ## attack fedseal itself and write the counts; FULL=--full tries ten times as much
	$(BIN)/python -m campaign $(FULL) --write docs/reliability.md

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(OUT) build dist bench/out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "setting up $(VENV), about a minute..."
	$(PIP_INSTALL) -e ".[data]"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e ".[dev]"
	@touch $(VENV)/.installed $@
