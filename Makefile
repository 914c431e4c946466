# One command per job; the first one sets up .venv, once.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup generated demo check test lint site bench clean

help:  ## list the commands
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 10

setup: .venv/ready  ## make .venv (done by the others when needed)

.venv/ready: pyproject.toml constraints.txt overrides.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "coterie needs Python 3.11 or newer; call make PYTHON=python3.x")'
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv || { $(PYTHON) -m venv --clear --without-pip .venv && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --disable-pip-version-check --no-deps -r overrides.txt
	touch $@

demo: setup  ## FMCL against FedAvg and Local on 20 simulated sites, 2 to 3 minutes
	$(BIN)/coterie demo

check: lint  ## lint and the fast tests, for every day: under three minutes on two cores
	$(BIN)/pytest -m fast -n auto

test: setup  ## all tests
	$(BIN)/pytest -n auto --dist loadfile --ignore tests/deployment/test_containers.py
	$(BIN)/pytest -rs tests/deployment/test_containers.py  # alone: 20 containers take 15 GB

generated: setup  ## write the tables of methods and settings, and what Flower's run config declares
	$(BIN)/python -m docs.generate

lint: setup  ## ruff and mypy --strict, on the tests and benchmarks too
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

site: setup  ## the documentation as pages with search, site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: setup  ## the benchmarks behind the figures in docs/benchmarks.md
	$(BIN)/python -m benchmarks

clean:  ## remove .venv and what tests left behind; runs/ stays
	rm -rf .venv build site *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
