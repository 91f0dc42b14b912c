# The two that a newcomer needs: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo down test lint unit fleet docs setup system format clean

help:
	@echo "make demo   boot the embedded lab, serve a tiny model on it with the real engine, ask it a question"
	@echo "make down   remove the lab again"
	@echo "make test   lint, unit tests, whole deploys on booted hosts"
	@echo "make lint | unit | fleet | docs | format | setup"

demo: setup
	@$(BIN)/python -m lab.demo

down:
	@$(BIN)/fleet lab down

test: lint unit fleet

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy fleet tasks deploy lab

# Those that start processes and wait for them run beside those that only compute.
WAITING := $(addprefix tests/unit/test_, group.py core_apply.py core_waiting.py standin_serving.py standin_topologies.py \
    machine_npu.py machine_gpu.py lab_packages.py)

unit: setup
	@$(BIN)/pytest $(WAITING) >.pytest_waiting.log 2>&1 & waiting=$$!; \
	$(BIN)/pytest tests/unit $(addprefix --ignore=, $(WAITING)); computing=$$?; \
	wait $$waiting; waited=$$?; cat .pytest_waiting.log; rm -f .pytest_waiting.log; test $$computing$$waited = 00

fleet: setup
	@$(BIN)/pytest tests/fleet

docs: setup
	@$(BIN)/python scripts/topologies.py
	@$(BIN)/python scripts/rules.py
	@$(BIN)/python scripts/catalogue.py

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

setup: .venv/.done

.venv/.done: pyproject.toml constraints.txt scripts/system.sh
	@scripts/system.sh
	@echo "making the Python environment in .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache *.egg-info
