# Every target sets up its own .venv first; a fresh clone needs only make and Python 3.11 or newer.
#   make test       the suite without the slow tests      make test-all   everything
#   WORKERS=2       how many processes share the tests, a file each; 0 is one, for a debugger
#   make check      formatting, lint, types, floors       make fmt        put the formatting right
#   make demo       the newsroom; another folder of Markdown with INPUT=path
#   make mutants    leaves out each condition of ownership in a copy, and shows which test notices
#   make bench      Rowlock beside the raw loop           ARGS="…" goes on to pytest, the demo or the bench

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
STAMP := $(VENV)/.installed

.PHONY: help venv test test-all check check-format check-lint check-types check-floors fmt mutants demo bench clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

venv: $(STAMP)

$(STAMP): pyproject.toml .ci/venv
	@bash .ci/venv $(VENV)
	@touch $@

test: $(STAMP)
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(STAMP)
	$(PYTEST) $(ARGS)

check: check-format check-lint check-types check-floors

check-format: $(STAMP)
	$(BIN)/ruff format --check .

check-lint: $(STAMP)
	$(BIN)/ruff check .

check-types: $(STAMP)
	$(BIN)/pyright

check-floors: $(STAMP)
	$(BIN)/lint-imports --no-cache

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

mutants: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python -m mutants $(ARGS)

demo: $(STAMP)
	@$(BIN)/python -m rowlock demo $(if $(INPUT),--input "$(INPUT)",--input README.md --input docs) --output demo-out $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m bench $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
