# Everything goes through two commands, each complete on a fresh machine with Python >= 3.11:
#   make book    the site with executed outputs, in _build/html
#   make test    lint, unit tests, every chapter, the strict book build, browser tests
# The rest is listed by `make help`. Variables may be set on the command line: make book PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# Tests and chapters run in this many processes side by side, each on one thread.
WORKERS ?= 2
# Longest time for one chapter in the notebook tests, in seconds.
NOTEBOOK_TIMEOUT ?= 1800
REPRODUCE_ARGS ?=
SELFCHECK_ARGS ?=

# A VENV given as a relative path is taken from here, so that recipes may change directory.
BIN := $(abspath $(VENV))/bin
STAMP := $(VENV)/.lengthgen-installed
# The chapters, and the pages beside them that compute what they say.
NOTEBOOKS := $(wildcard notebooks/*.ipynb book/*.ipynb)
SITE := _build/html
# The notebooks as they were run. Not below _build: nbmake passes over a folder of that name.
EXECUTED := build/chapters
# What the package is raced against is installed into an environment of its own.
BENCH_VENV ?= .venv-bench
BENCH_BIN := $(abspath $(BENCH_VENV))/bin
BENCH_STAMP := $(BENCH_VENV)/.lengthgen-installed
BENCH_ARGS ?=
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The tools come from the environment alone: kernels and consoles of the user's own Jupyter
# must neither break nor rescue the build.
export PATH := $(BIN):$(PATH)
export JUPYTER_PREFER_ENV_PATH := 1
export JUPYTER_PLATFORM_DIRS := 1
export PYDEVD_DISABLE_FILE_VALIDATION := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export OMP_NUM_THREADS ?= 1
# Bytecode is kept, even where the environment says otherwise: the tests start many processes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install book test lint unit chapters browser lab reproduce selfcheck bench archive pdf clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## .venv with the pinned requirements and the package

$(STAMP): requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "No '$(PYTHON)' found. Install Python >= 3.11, or name one: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("This book needs Python >= 3.11, but $(PYTHON) is %d.%d. Name another: make PYTHON=/path/to/python" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m ipykernel install --prefix $(abspath $(VENV)) --name python3 --display-name "Python 3 (lengthgen)" >/dev/null
	@touch $@

# The output is built from nothing: after a failed strict build a second one on the same output
# would pass, because unchanged pages are not read again. The package's unit cache stays.
# The pages show the very runs that `chapters` has just checked.
book: chapters ## every chapter run, then the site with their outputs, in _build/html
	rm -rf $(SITE) _build/.doctrees _build/jupyter_execute
	LENGTHGEN_CHAPTERS=$(abspath $(EXECUTED)) $(BIN)/jupyter-book build . --all -W --keep-going --quiet
	@test -s $(SITE)/index.html || { echo "The build left no $(SITE)/index.html"; exit 1; }
	@echo "The book: $$($(BIN)/python -c 'import pathlib; print(pathlib.Path("$(SITE)/index.html").resolve().as_uri())')"

# One after the other, the quick ones first; chapters run once and the site is built once, by `book`.
test: ## lint, unit tests, every chapter, the strict book build, browser tests
	$(MAKE) lint
	$(MAKE) unit
	$(MAKE) book
	$(MAKE) browser

lint: $(STAMP) ## ruff on code and chapters
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

unit: $(STAMP) ## unit tests and doctests
	$(PYTEST) -m "not browser" $(PYTEST_ARGS)

chapters: $(STAMP) ## run every chapter from top to bottom
	rm -rf $(EXECUTED)
	mkdir -p $(EXECUTED)
	cp $(NOTEBOOKS) $(EXECUTED)
	$(PYTEST) --durations=0 --nbmake --overwrite --nbmake-timeout=$(NOTEBOOK_TIMEOUT) --nbmake-kernel=python3 $(addprefix $(EXECUTED)/,$(notdir $(NOTEBOOKS)))

browser: $(STAMP) ## browser tests of the site that `make book` built
	$(PYTEST) tests/browser $(PYTEST_ARGS)

lab: $(STAMP) ## the chapters in JupyterLab
	$(BIN)/jupyter-lab --notebook-dir=. $(firstword $(NOTEBOOKS))

reproduce: $(STAMP) ## the full profile of every experiment, into results/
	$(BIN)/python -m lengthgen reproduce $(REPRODUCE_ARGS)

selfcheck: $(STAMP) ## compute every frozen result again from nothing and compare all rows
	$(BIN)/python -m lengthgen selfcheck $(SELFCHECK_ARGS)

$(BENCH_STAMP): requirements.txt benchmarks/requirements.txt pyproject.toml
	test -x $(BENCH_BIN)/python || $(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_BIN)/python -m pip install --quiet -r requirements.txt -r benchmarks/requirements.txt
	$(BENCH_BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

bench: $(BENCH_STAMP) ## speed beside other packages, into benchmarks/results.json
	$(BENCH_BIN)/python -m benchmarks $(BENCH_ARGS)

archive: book ## site and results in one zip under _build
	$(BIN)/python book/_ext/archive.py _build/lengthgen-book.zip

pdf: book ## the whole book as one document to print, under _build
	$(BIN)/python book/_ext/pdf.py _build/lengthgen-book.pdf

clean: ## remove what was built (the environment and the unit cache stay)
	rm -rf _build build lengthgen.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
