# One command for each thing people do here. Each sets up what it needs in this checkout, once; the second time is quick.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# What of the caller's Python would leak into ours. PYTHONDONTWRITEBYTECODE among them, because modules are installed
# uncompiled: with it, each of thousands of processes would compile all of torch anew.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

# The Python of the main environment, for example `make clean test PYTHON=3.13`.
PYTHON := 3.11
# Those of the images.
PYTHON_COLAB := 3.13
PYTHON_KAGGLE := 3.12
VENV := .venv
VENV313 := .venv313
VENV_COLAB := .venv-colab
VENV_KAGGLE := .venv-kaggle
VENV_WHEEL := .venv-wheel
VENV_LIBRARIES := .venv-libraries
# Modules are compiled when they are first imported: to compile all of torch here takes two thirds of the time.
INSTALL := scripts/install.py --constraint constraints.txt
NO_TORCH := echo "If pip found no torch: constraints.txt allows its CPU build only, so pip must be configured with a place"; \
  echo "that has CPU builds (extra-index-url or find-links)."
# BENCH=name picks one benchmark, or several; all of them otherwise.
BENCH ?=
# UNTIL=seconds since 1970: `make test` runs no longer, and says what it knows by then.
UNTIL ?=
# What `make check` runs of the tests: test, or test-all.
TESTS ?= test

.PHONY: help demo test test-all changed libraries check format docs smoke bench clean python313

help: ## show these lines
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

demo: $(VENV)/.demo $(VENV)/.fuse ## train from a simulated Drive, straight and staged; prints the comparison
	$(VENV)/bin/python -m demo

test: $(VENV)/.compiled $(VENV)/.fuse $(VENV)/.browser ## all behaviour, once: five to eight minutes on two cores
	@$(VENV)/bin/python scripts/run_tests.py $(if $(UNTIL),--until $(UNTIL))

test-all: $(VENV)/.large $(VENV)/.compiled $(VENV)/.fuse $(VENV)/.browser $(VENV)/.ipywidgets7 $(VENV_COLAB)/.installed $(VENV_KAGGLE)/.installed python313 ## that, JAX, long forms, Python without torch, Colab's and Kaggle's own Python and versions: an hour
	@$(VENV)/bin/python scripts/run_tests.py --all

# pytest-testmon records which code each test runs, so the first time all tests run.
changed: $(VENV)/.compiled $(VENV)/.fuse ## tests of what changed since they last passed; the first time all of them
	$(VENV)/bin/python -P -m pytest -q --testmon -m "not long" tests

check: $(VENV)/.installed ## format, lint, types, layers, tests, smoke test of the wheel
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/pytest -q tests/test_layers.py tests/test_repository.py
	@$(MAKE) --no-print-directory $(TESTS)
	@$(MAKE) --no-print-directory smoke

format: $(VENV)/.installed ## put the code into the project's format
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/python scripts/clean_notebooks.py

docs: $(VENV)/.site ## build the pages as a site, with the reference, into site/; complains of dead links
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "Open site/index.html. For the search: $(VENV)/bin/python -m http.server -d site"

libraries: $(VENV_LIBRARIES)/.installed ## train with fast.ai, timm, ultralytics, kornia … themselves, in an environment of 6 GB
	$(VENV_LIBRARIES)/bin/python -P -m pytest -q -p no:cacheprovider tests/load/test_libraries.py tests/contract/test_training_faults.py

smoke: $(VENV)/.installed $(VENV_WHEEL)/bin/pip ## the smoke tests against the built wheel, from an empty folder
	@bash scripts/smoke_wheel.sh $(VENV) $(VENV_WHEEL)

bench: $(VENV)/.installed $(VENV)/.large $(VENV)/.fuse ## measure, and write benchmarks/results/ and docs/benchmarks.md (BENCH=name for one)
	$(VENV)/bin/python -m benchmarks $(BENCH)

clean: ## remove what these targets made, the virtual environments included
	rm -rf $(VENV) $(VENV313) $(VENV_COLAB) $(VENV_KAGGLE) $(VENV_WHEEL) $(VENV_LIBRARIES) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .testmondata*
	find colabstage simulated_drive demo tests benchmarks scripts -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/bin/pip $(VENV_WHEEL)/bin/pip $(VENV_LIBRARIES)/bin/pip:
	@bash scripts/make_venv.sh $(PYTHON) $(@D)/..

$(VENV313)/bin/pip:
	@bash scripts/make_venv.sh 3.13 $(@D)/..

$(VENV_COLAB)/bin/pip:
	@bash scripts/make_venv.sh $(PYTHON_COLAB) $(@D)/..

$(VENV_KAGGLE)/bin/pip:
	@bash scripts/make_venv.sh $(PYTHON_KAGGLE) $(@D)/..

# Apart from the rest, so that whoever tries the demo waits for nothing else.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "Installing colabstage with what the demo needs (torch is most of it) into $(VENV), once: about a minute ..."
	@$(VENV)/bin/python $(INSTALL) --editable . --group demo || { $(NO_TORCH); exit 1; }
	@touch $@

# One call of pip, because each looks at everything anew.
$(VENV)/.tested: pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "Installing colabstage with what its tests need (torch and TensorFlow are most of it) into $(VENV), once: a minute or two ..."
	@$(VENV)/bin/python $(INSTALL) --editable . --group demo --group test --group arrow --group tensorflow \
	  --group notebooks || { $(NO_TORCH); exit 1; }
	@touch $@ $(VENV)/.demo

# One process imports torch and the modules of the tests, another Jupyter and the like, before four do all of it at the
# same time; TensorFlow is only ever imported by one. What cannot be imported is told by the tests.
$(VENV)/.compiled: $(VENV)/.tested
	@echo "Compiling what the tests import ..."
	@$(VENV)/bin/python -P tests/nursery.py compile >/dev/null 2>&1 & \
	  $(VENV)/bin/python -P -m pytest -q -p no:cacheprovider -p tests.imported_only --collect-only tests >/dev/null 2>&1 || true; wait
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.tested
	@echo "Installing the tools that check into $(VENV) ..."
	@$(VENV)/bin/python $(INSTALL) --group check
	@touch $@

# What only `make test-all` and benchmarks use.
$(VENV)/.large: pyproject.toml constraints.txt $(VENV)/.tested
	@echo "Installing JAX, Lightning, Accelerate and MkDocs into $(VENV) ..."
	@$(VENV)/bin/python $(INSTALL) --group large
	@touch $@

# With the package, because the reference is made of it.
$(VENV)/.site: pyproject.toml constraints.txt $(VENV)/.installed
	@$(VENV)/bin/python $(INSTALL) --group site
	@touch $@

# Without torch, so that the tests show what works without it.
$(VENV313)/.installed: pyproject.toml constraints.txt | $(VENV313)/bin/pip
	@echo "Installing colabstage without torch into $(VENV313) ..."
	@$(VENV313)/bin/python $(INSTALL) --group test --editable . --group fuse
	@touch $@

# The Python and the versions of an image. Without constraints.txt, which has another torch; pip takes a build for CUDA,
# of 6 GB, where it is not configured with a place that has CPU builds.
$(VENV_COLAB)/.installed $(VENV_KAGGLE)/.installed: .venv-%/.installed: pyproject.toml constraints-%.txt | .venv-%/bin/pip
	@echo "Installing colabstage with the Python and the versions of the image of $* into $(@D) ..."
	@$(@D)/bin/python scripts/install.py --constraint constraints-$*.txt --editable . --group demo --group test \
	  --group arrow --group tensorflow --group notebooks
	@touch $@

# Another torch than constraints.txt has: torchvision does not import beside that one.
$(VENV_LIBRARIES)/.installed: pyproject.toml | $(VENV_LIBRARIES)/bin/pip
	@echo "Installing colabstage with fast.ai, timm, ultralytics, kornia, Ignite and Lightning into $(VENV_LIBRARIES), 6 GB with their torch ..."
	@$(VENV_LIBRARIES)/bin/python scripts/install.py --group libraries --editable .
	@touch $@

python313:
	@if bash scripts/find_python.sh 3.13 >/dev/null; then $(MAKE) -s --no-print-directory $(VENV313)/.installed; fi

# The widgets of Colab's image, beside those of the environment: their names are the same.
$(VENV)/.ipywidgets7: constraints.txt | $(VENV)/.tested
	@echo "Installing ipywidgets 7.7 into $(VENV)/ipywidgets7 ..."
	@rm -rf $(VENV)/ipywidgets7
	@$(VENV)/bin/python -m pip install -qq --no-deps --target $(VENV)/ipywidgets7 'ipywidgets>=7.7,<7.8' ipython_genutils
	@touch $@

$(VENV)/.browser: scripts/setup_browser.sh | $(VENV)/bin/pip
	@bash scripts/setup_browser.sh
	@touch $@

$(VENV)/.fuse: scripts/setup_fuse.sh | $(VENV)/bin/pip
	@bash scripts/setup_fuse.sh
	@touch $@
