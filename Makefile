# make mlcomp   check and measure the compiler over the shape files, print the tables, write reports/<device>/;
#               where ARGS leaves something out, reports/.last/
# make test     lint, formatting, types, import contract, the project's own tests
# make oldest   the tests of how the suite is picked, kept and reported, under the oldest pytest that pyproject.toml allows
# All set up .venv first, and again only after pyproject.toml or constraints.txt changed.
#   ARGS="shapes/ops/softmax.toml -k bf16"    more arguments for pytest
#   PYTHON=python3.12 VENV=.venv312           another interpreter, in an environment of its own
#   JOBS=4                                    processes; benchmarks take turns, alone on the machine

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
ARGS ?=
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed.stamp

.DELETE_ON_ERROR:
.PHONY: mlcomp test oldest

mlcomp: $(INSTALLED)
	$(BIN)/pytest --mlcomp --mlcomp-bench quick -n $(JOBS) $(ARGS)

test: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -n $(JOBS) $(ARGS)

# Laid over the environment, whose own pytest stays.
oldest: OLDEST := $(shell sed -n 's/.*"pytest>=\([0-9.]*\),.*/\1/p' pyproject.toml)
oldest: $(INSTALLED)
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --upgrade --target $(VENV)/oldest "pytest==$(OLDEST)"
	PYTHONPATH=$(VENV)/oldest $(BIN)/python -m pytest conformance/tests/run/test_citizen.py \
	    -k "found_again or leaves_the_reports" $(ARGS)

# An environment keeps the Python that it was made with; asking for another one by PYTHON= must not be ignored.
ifneq ($(origin PYTHON),file)
mlcomp test oldest: same-python
.PHONY: same-python
same-python: $(INSTALLED)
	@version='import sys; print("Python %d.%d" % sys.version_info[:2])'; \
	has=`$(BIN)/python -c "$$version"`; wanted=`$(PYTHON) -c "$$version"`; \
	test "$$has" = "$$wanted" || { \
	    echo "$(VENV) was made with $$has, and PYTHON=$(PYTHON) is $$wanted." \
	         "Give it an environment of its own (VENV=.venv-other), or remove $(VENV) first." >&2; exit 1; }
endif

# The stamp is written last: an install that was interrupted starts again.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	    echo "mlcomp needs Python 3.11 or newer, and '$(PYTHON)' was not found." \
	         "Install it (Debian: apt-get install python3 python3-venv) or name another: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "mlcomp needs Python 3.11 or newer, and '$(PYTHON)' is `$(PYTHON) --version 2>&1`." \
	         "Name a newer one: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "'$(PYTHON)' cannot make virtual environments: its venv module is missing or incomplete." \
	         "Install it (Debian: apt-get install python3-venv) and run make again." >&2; exit 1; }
	@command -v g++ >/dev/null || { \
	    echo "mlcomp compiles its kernels with g++, which was not found." \
	         "Install it (Debian: apt-get install g++) and run make again." >&2; exit 1; }
	@echo "Installing into $(VENV); this happens once and takes a few minutes."
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@test -t 1 || quiet=--quiet; \
	 $(BIN)/pip install --disable-pip-version-check $$quiet --editable ".[test]" --constraint constraints.txt
	@touch $@
