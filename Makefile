# The commands of a checkout. They need make, Python 3.11 to 3.13 and a C++ compiler, nothing else:
# each target first brings .venv up to date, which costs nothing when it already is.

# What .venv is made with, and what `NOVENV=1` runs with.
PYTHON ?= python3
# Pinned, because a range would take the newest release with several GB of CUDA libraries. pip's
# options may follow, for example: TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
# More arguments for pytest, for example: ARGS="-k store"
ARGS ?=
# Processes that run tests. Compiling fills a core each; what times waits for its turn.
JOBS ?= 2
# NOVENV=1 takes PYTHON as it is, for machines that come with their own torch.
NOVENV ?=

VENV := .venv
# One stamp for each TORCH: asking for another one installs it.
STAMP := $(VENV)/.installed-$(firstword $(shell printf '%s' '$(TORCH)' | cksum))

ifeq ($(NOVENV),1)
PY := $(PYTHON)
READY := src/fusewise.egg-info/PKG-INFO
export PYTHONPATH := $(CURDIR)/src$(if $(PYTHONPATH),:$(PYTHONPATH))
else
PY := $(VENV)/bin/python
READY := $(STAMP)
endif

# The rooms lie at the top of the checkout. Without this, `python -m` puts that folder on the path
# and `import datasets` finds a room in place of the package of that name. Byte code is kept, whatever
# the shell says of it: many processes of the tests import fusewise.
RUN := PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE= $(PY)

.PHONY: help install demo test slow-test gpu-test lint types contracts clean toolchain
# The checks of the machine come before the install, with -j too.
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'Variables: PYTHON=$(PYTHON)  TORCH="$(TORCH)"  ARGS (for pytest)  NOVENV=1 (no .venv)'

# The demo's store and compiled code stay in the checkout, so that a second run replays them.
demo: toolchain $(READY)  ## collect, train and compile two models on this CPU; again: replay
	FUSEWISE_HOME="$(CURDIR)/.demo" TORCHINDUCTOR_CACHE_DIR="$(CURDIR)/.demo/inductor" \
	    $(RUN) -m fusewise.commands.demo

# A file's tests share what they compile, so they stay together. Files go in their order: by number
# of tests, those with few that take a minute each would come last, and the other cores would wait.
SHARED := -n $(JOBS) --dist loadfile --no-loadscope-reorder

test: toolchain $(READY)  ## all tests that this machine can run
	$(RUN) -m pytest $(SHARED) $(ARGS)

slow-test: toolchain $(READY)  ## the tests that `test` leaves out since they take long
	$(RUN) -m pytest $(SHARED) -m slow $(ARGS)

gpu-test: toolchain $(READY)  ## the tests that need an NVIDIA GPU
	@$(RUN) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || \
	    { echo 'make: torch finds no NVIDIA GPU here, so there is nothing to test' >&2; exit 1; }
	$(RUN) -m pytest -m gpu $(ARGS)

lint: $(READY)  ## ruff: rules and format
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(READY)  ## mypy, strict
	$(RUN) -m mypy -p fusewise

# The second line is the rule that only compiler/inductor touches Inductor: see pyproject.toml.
contracts: $(READY)  ## which room may import which
	$(RUN) -c 'from importlinter.cli import lint_imports_command as main; main()' --no-logo
	$(RUN) -m ruff check --select TID251 .

install: $(READY)  ## bring .venv up to date, and nothing else

clean:  ## remove all that these commands made: .venv, the demo's store, builds, caches
	rm -rf $(VENV) .demo build dist src/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name .git -prune -o -name __pycache__ -exec rm -rf {} +

# PYTHON is only asked for until .venv exists.
CHECKED := $(if $(wildcard $(STAMP)),$(PY),$(PYTHON))

# Inductor compiles its CPU kernels with the machine's compiler; without one every test would fail
# late and each with another message.
toolchain:
	@command -v $(firstword $(CXX)) >/dev/null || { \
	    echo 'make: no C++ compiler "$(firstword $(CXX))": Inductor needs one for its CPU kernels.' >&2; \
	    echo '      Install it (Debian, Ubuntu: apt install g++) or name another: make CXX=clang++' >&2; \
	    exit 1; }
	@$(CHECKED) -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' || { \
	    echo 'make: "$(CHECKED)" has no C headers (Python.h), which Inductor compiles against.' >&2; \
	    echo '      Install them (Debian, Ubuntu: apt install python3-dev)' >&2; \
	    exit 1; }

# A .venv without pip is one whose making was cut short: it is made anew.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	    echo 'make: "$(PYTHON)" is not Python 3.11 to 3.13; name one that is: make PYTHON=python3.12' >&2; \
	    exit 1; }
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV) || { \
	    echo 'make: "$(PYTHON)" cannot make environments (Debian, Ubuntu: apt install python3-venv)' >&2; \
	    exit 1; }
	rm -f $(VENV)/.installed-*
	$(VENV)/bin/python -m pip install --disable-pip-version-check $(TORCH)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --editable '.[dev]'
	touch $@

# With src on the path, this is what tells torch of the backend when nothing is installed.
src/fusewise.egg-info/PKG-INFO: pyproject.toml
	$(PY) -c 'import setuptools; setuptools.setup()' --quiet egg_info
	touch $@
