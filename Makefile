# make serve | test | test-full | check | bench | wheel | wheel-aarch64 | native | sanitized |
# clean
#
# Needs Linux with python3 (3.11 to 3.13), its venv module, g++ and a package index; everything
# else, cmake and ninja included, comes from the index.
#
#   PYTHON=python3.12   another interpreter
#   PORT=8000           port of `make serve`
#   TORCH_INDEX=URL     index for torch alone (for example PyTorch's CPU index)
#   ORTLOOM_NO_NATIVE=1 install without the op library (no compiler needed; slower)

PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
TORCH_INDEX ?=
CXX ?= g++

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: serve test test-full check bench wheel wheel-aarch64 native sanitized clean tools demo-model

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet -c constraints.txt
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
NATIVE := CMakeLists.txt $(wildcard kernels/csrc/*)
DEMO := build/demo
BUNDLE := $(DEMO)/bundle
DEMO_NAME := SmolLM2-135M-Instruct

# --- what must be there ---------------------------------------------------------------------

define CHECK_PYTHON
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit("ortloom needs Python 3.11 to 3.13, '$(PYTHON)' is %d.%d: set PYTHON=..." % sys.version_info[:2])
try:
    import ensurepip, venv
except ImportError:
    sys.exit("the venv module of %d.%d is missing: apt install python%d.%d-venv" % (sys.version_info[:2] * 2))
endef
export CHECK_PYTHON

tools:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: apt install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c "$$CHECK_PYTHON"
	@test -n "$${ORTLOOM_NO_NATIVE:-}" || command -v $(CXX) >/dev/null || \
	  { echo "$(CXX) is missing: apt install g++ (or set ORTLOOM_NO_NATIVE=1)"; exit 1; }

# --- installing; the stamps keep pip quiet when nothing changed -------------------------------

$(VENV)/.stamp-venv: | tools
	@echo "making $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --upgrade 'pip>=25'
	@touch $@

$(VENV)/.stamp-torch: constraints.txt | $(VENV)/.stamp-venv
ifeq ($(TORCH_INDEX),)
	@$(BIN)/python tools/torch_plan.py -c constraints.txt $(TORCH)
	@echo "installing $(TORCH)"
	@$(INSTALL) $(TORCH)
else
	@echo "installing $(TORCH) from $(TORCH_INDEX)"
	@$(INSTALL) --no-deps --index-url $(TORCH_INDEX) $(TORCH)
endif
	@touch $@

$(VENV)/.stamp-serve: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/.stamp-torch
	@echo "installing .[cpu,export]"
	@$(INSTALL) -e '.[cpu,export]'
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml constraints.txt $(VENV)/.stamp-serve
	@echo "installing .[cpu,export,dev]"
	@$(INSTALL) -e '.[cpu,export,dev]' 'pyright[nodejs]' scikit-build-core cmake ninja
	@touch $@

native: | $(VENV)/.stamp-torch
	@rm -f $(VENV)/.stamp-serve
	@$(MAKE) --no-print-directory $(VENV)/.stamp-serve

# The op library with AddressSanitizer and UndefinedBehaviorSanitizer, for tests/kernels; with the
# cmake and ninja of the development venv, or the system's.
sanitized:
	@PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B build/sanitize -G Ninja -DCMAKE_BUILD_TYPE=None \
	  -DCMAKE_CXX_COMPILER=$(CXX) -DORTLOOM_SANITIZE=ON >/dev/null
	@PATH="$(abspath $(BIN)):$$PATH" cmake --build build/sanitize >/dev/null

# --- demo model ---------------------------------------------------------------------------------

demo-model: $(VENV)/.stamp-serve
	@$(BIN)/python -m ortloom.demo --target $(DEMO) >/dev/null

$(BUNDLE)/manifest.json: | $(VENV)/.stamp-serve demo-model
	@echo "exporting the demo model to $(BUNDLE) (first run only)"
	@$(BIN)/ortloom export "$$($(BIN)/python -m ortloom.demo --target $(DEMO))" -o $(BUNDLE) \
	  --quant keep --force >/dev/null

serve: $(VENV)/.stamp-serve $(BUNDLE)/manifest.json
	@exec $(BIN)/ortloom serve $(BUNDLE) --served-model-name $(DEMO_NAME) --host 127.0.0.1 --port $(PORT)

# --- tests and checks ---------------------------------------------------------------------------

# Two lanes, since there are hardly ever fewer than two processors: one of compilers, exports and
# kernels, one that mostly waits for servers. The first one's output is printed when both are done.
# A shell ignores interrupts for what it starts behind, and tests of interrupts would inherit that.
# $(1) = name of the log, $(2) = tests of the lane behind, $(3) = arguments of the lane in front
define LANES
	@mkdir -p build; log=build/$(1).log; status=0; \
	  nice -n 5 env --default-signal=INT $(BIN)/python -m pytest $(2) >$$log 2>&1 & behind=$$!; \
	  trap 'kill $$behind 2>/dev/null || true' EXIT; \
	  $(BIN)/python -m pytest $(3) || status=1; \
	  wait $$behind || status=1; cat $$log; exit $$status
endef

HEAVY := tests/exporter tests/kernels tests/benchmarks tests/models
HEAVY_FULL := tests/exporter tests/kernels tests/e2e/test_perplexity.py

test: $(VENV)/.stamp-dev demo-model
	$(call LANES,test-heavy,-m "not full" $(HEAVY),-m "not full" $(HEAVY:%=--ignore=%))

test-full: $(VENV)/.stamp-dev demo-model
	$(call LANES,test-full-heavy,-m full $(HEAVY_FULL),-m full $(HEAVY_FULL:%=--ignore=%))

check: $(VENV)/.stamp-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(VENV)/.stamp-dev demo-model
	@$(BIN)/python -m benchmarks.first

wheel: $(VENV)/.stamp-dev
	@$(BIN)/python -m build --wheel --outdir dist .
	@ls dist/*.whl

wheel-aarch64: $(VENV)/.stamp-dev
	@$(INSTALL) ziglang
	@$(BIN)/python tools/wheel_aarch64.py --out dist

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f $(VENV)/.stamp-*
