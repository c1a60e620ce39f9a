# A bare Debian (>= 12) or Ubuntu (>= 24.04) needs: apt-get install -y git make python3-venv
# Everything else is set up by the targets themselves; `make help` lists them.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup run demo check test test-vm box bench docs install uninstall deb clean need-root

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTHONS := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11
ARGS ?=

help: ## this list
	@awk -F ': .*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## .venv with koordlet and its test tools; no root
	@:

$(STAMP): constraints.txt pyproject.toml
	@test ! -e $(BIN)/python || $(BIN)/python -c '' 2>/dev/null || rm -rf $(VENV)
	@test -e $(BIN)/python || { \
	  for python in $(PYTHONS); do \
	    $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	      2>/dev/null && exec $$python -m venv $(VENV); \
	  done; \
	  echo "setup: no Python >= 3.11 with the venv module among: $(strip $(PYTHONS));" \
	    "remedy: apt-get install -y python3-venv, or make setup PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable '.[test]'
	@touch $@

need-root:
	@test -n "$(DESTDIR)" || test "$$(id -u)" = 0 || { echo "this target changes cgroups and needs root;" \
	  "remedy: sudo make $(MAKECMDGOALS)" >&2; exit 1; }

# koordlet reads only files that root owns and nobody else may write; a clone may be a user's.
run: need-root setup ## koordlet in the foreground on this host (root); Ctrl-C restores everything
	@install -D -m 0644 systemd/examples/colocation.yaml .cache/run/nodeslo.yaml
	@exec $(BIN)/koordlet --summary --node-slo "$(CURDIR)/.cache/run/nodeslo.yaml" $(ARGS)

demo: need-root setup ## what koordlet is for, measured here in six minutes (root): table, charts, JSON
	@mkdir -p .cache/demo
	@$(BIN)/python -m tests.benchmarks.demo --json $(ARGS) > .cache/demo/demo.json; \
	  status=$$?; echo "all figures: .cache/demo/demo.json"; exit $$status

check: setup ## format, lint, types, imports, generated files, quick tests
	@$(BIN)/python -m tests.support.gate check

test: setup ## everything that this machine allows (root for kernel and end-to-end tests)
	@$(BIN)/python -m tests.support.gate test

test-vm: setup ## tests in virtual machines: cgroup v2, systemd (root, QEMU); part of make test
	@$(BIN)/python -m tests.support.gate test-vm

box: need-root setup ## the Vagrant box that vagrant/Vagrantfile starts machines from (root)
	@$(BIN)/python -m tests.support.vmbox

bench: setup ## one benchmark: make bench NAME=overhead ARGS='--pods 110 --containers 3'
	@test -n "$(NAME)" || { echo "bench: which? remedy: make bench NAME=overhead" >&2; exit 1; }
	@test -f tests/benchmarks/$(NAME).py || { echo "bench: no benchmark '$(NAME)' in" \
	  "tests/benchmarks; remedy: make bench NAME=overhead" >&2; exit 1; }
	@$(BIN)/python -m tests.benchmarks.$(NAME) $(ARGS) --json

docs: setup ## regenerate docs/cli.md, docs/metrics.md, docs/schema and proto/koordpb
	@$(BIN)/python -m tests.support.gendocs

SETUP := PREFIX="$(or $(PREFIX),/usr/local)" DESTDIR="$(DESTDIR)" WHEELS="$(WHEELS)" \
  PYTHON="$(PYTHON)" PURGE="$(PURGE)" systemd/setup.sh

install: need-root ## as a systemd service (PREFIX, DESTDIR, WHEELS=dir for no network); root
	@$(SETUP) install

uninstall: need-root ## give everything back, take it away; PURGE=1: the configuration, too
	@$(SETUP) uninstall

deb: ## dist/koord-host_*.deb, with all that it runs on but Python (WHEELS as for install)
	@WHEELS="$(WHEELS)" systemd/build-deb.sh .cache/deb

clean: ## remove everything that make made here
	@rm -rf $(VENV) .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
