# Every target does its own set-up: the first one creates .venv from poetry.lock, later ones reuse it.
# `make test PYTHON=python3.13` chooses the interpreter of a new environment.

PYTHON ?= python3
EXTRAS := dev,minilm,optuna,parallel,slurm,tensorboard
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What slow tests, the examples and the documentation need on top.
MORE_EXTRAS := app,comet,companions,docs,mlflow,trackio
READY_FOR_MORE := $(VENV)/.ready_for_more
# torch with its CUDA libraries, for tests that need no device.
CUDA_VENV := .venv-cuda
# transformers' own tests of models, which only its source distribution has.
MODEL_TESTS := .cache/model-tests
# Test processes; tests/conftest.py gives each of them one thread.
WORKERS ?= 2
# `make test-gpu` and `make gpu`: `DEVICE=cpu` runs the tests, and small sizes, on the CPU; HOURS bounds all of
# `make gpu`. WIKITEXT2 is a folder with the files of WikiText-2, SUDOKU and MAZES folders with train.csv and test.csv of Sudoku-Extreme and Maze-Hard; empty: the hub.
DEVICE ?= cuda
HOURS ?= 1
WIKITEXT2 ?=
SUDOKU ?=
MAZES ?=

# What `make lint` checks for misspellings; the exceptions are in pyproject.toml.
SPELLED := README.md CHANGELOG.md docs configs adadepth hydra_plugins benchmarks examples

.DEFAULT_GOAL := help
.PHONY: help install demo demos test test-slow test-tutorials test-next test-lowest model-tests test-gpu test-fake-cuda gpu space docs figures lint format bench lock lock-check clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-11s %s\n", $$1, $$2 }'

install: $(READY) ## Create .venv with the locked versions and the project itself

$(READY): pyproject.toml poetry.lock .ci/lock.py
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else "adadepth needs Python 3.11 to 3.13: make PYTHON=python3.12")'
	@echo "Installing the locked versions into $(VENV): a few minutes the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python .ci/lock.py constraints > $(VENV)/constraints.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(READY_FOR_MORE): $(READY)
	@echo "Installing what slow tests, examples and the documentation need into $(VENV)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[$(EXTRAS),$(MORE_EXTRAS)]'
	@touch $@

demo: $(READY) ## Train on pointers for two minutes: depth is what a token needs; the fixed depths next to its compute beside it
	$(BIN)/python adadepth/run.py --config-name act_hops
	$(BIN)/python adadepth/run.py --config-name act_hops rival_of=latest

demos: $(READY) ## Make the models in the package anew (adadepth/demos): about twenty minutes on one thread
	$(BIN)/python .ci/demos.py $(ARGS)

# The tests start many commands, which read the modules that the first one compiled.
test: $(READY) ## Run the quick tests
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-slow: model-tests ## Run the slow tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "slow and not gpu" $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/property --hypothesis-profile thorough)
	$(if $(ARGS),,ADADEPTH_TEST_DEVICE=cpu $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m gpu tests/gpu)

test-tutorials: $(READY_FOR_MORE) ## Execute the notebooks of docs/tutorials
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m tutorial $(ARGS)

test-next: ## Run the quick tests with the newest transformers and torch, in .venv-next: ARGS="--pre --only transformers"
	@$(PYTHON) .ci/next.py --workers $(WORKERS) $(ARGS)

test-lowest: ## Run the quick tests with the lowest versions that pyproject.toml admits, in .venv-lowest
	@$(PYTHON) .ci/next.py --lowest --workers $(WORKERS) $(if $(ARGS),-- $(ARGS))

model-tests: $(MODEL_TESTS)/.ready ## Fetch transformers' own model tests, which test-slow runs on the families

$(MODEL_TESTS)/.ready: $(READY_FOR_MORE)
	@rm -rf $(MODEL_TESTS)
	@$(BIN)/python -m pip download -qq --disable-pip-version-check -c $(VENV)/constraints.txt --no-deps \
		--no-binary transformers -d $(MODEL_TESTS) transformers
	@cd $(MODEL_TESTS) && for archive in *.tar.gz; do tar xzf $$archive $${archive%.tar.gz}/tests; done
	@touch $@

test-gpu: $(READY) ## Run the tests that need a CUDA device; DEVICE=cpu runs them on the CPU
	ADADEPTH_TEST_DEVICE=$(DEVICE) $(BIN)/python -m pytest -m gpu $(ARGS)

test-fake-cuda: $(CUDA_VENV)/.ready ## List host reads and mixed devices on CUDA without a device, in .venv-cuda (5 GB)
	$(CUDA_VENV)/bin/python -m pytest -n $(WORKERS) -m fake_cuda $(ARGS)

# `===` refuses a build of another index, such as 2.13.0+cpu.
$(CUDA_VENV)/.ready: pyproject.toml poetry.lock .ci/lock.py
	@echo "Installing the locked versions, and torch with CUDA, into $(CUDA_VENV): several minutes the first time"
	@$(PYTHON) -m venv $(CUDA_VENV)
	@$(CUDA_VENV)/bin/python .ci/lock.py constraints > $(CUDA_VENV)/constraints.txt
	@$(CUDA_VENV)/bin/python -m pip install -qq --disable-pip-version-check -c $(CUDA_VENV)/constraints.txt \
		"$$(grep '^torch==' $(CUDA_VENV)/constraints.txt | sed 's/==/===/')" -e '.[dev]'
	@touch $@

gpu: $(READY) ## The first hour on a device: tests, parity, speed, crossovers, published runs, and one report
	$(BIN)/python benchmarks/first_hour.py --device $(DEVICE) --hours $(HOURS)$(if $(WIKITEXT2), --wikitext2 $(WIKITEXT2))$(if \
		$(SUDOKU), --sudoku $(SUDOKU))$(if $(MAZES), --mazes $(MAZES)) $(ARGS)

space: $(READY) ## Write a folder that the hub runs as a space: make space RUN=outputs/NAME/RUN [FOLDER=space]
	@$(BIN)/python -m adadepth.contrib.serve.space $(RUN) $(FOLDER)

docs: $(READY_FOR_MORE) ## Build the documentation as a site into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

figures: ## Draw the architecture of every model family into docs/figures
	@$(PYTHON) .ci/architecture_figures.py

lint: $(READY) ## Check style, formatting, types and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell $(SPELLED)

format: $(READY) ## Fix what the linter can fix, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Time training against the library's own ALBERT, exits, reuse of a base, blocks, and ragged execution
	$(BIN)/python benchmarks/training_step.py
	$(BIN)/python benchmarks/ponder_inference.py
	$(BIN)/python benchmarks/adalayers.py
	$(BIN)/python benchmarks/par.py
	$(BIN)/python benchmarks/ragged_execution.py --hidden 768 --length 128 --batch 1 8 --depths published

lock: ## Resolve the dependencies anew (needs poetry 2)
	poetry lock
	@$(MAKE) --no-print-directory lock-check

lock-check: ## Check that poetry.lock belongs to pyproject.toml (offline)
	@$(PYTHON) .ci/lock.py check

clean: ## Remove the environment and the caches; keep outputs/
	rm -rf $(VENV) .venv-lowest .venv-next $(CUDA_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
