# Every target works from a clean clone without an activated environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

SEEDS ?= 2000

.PHONY: demo dist docs release setup bench bench-failover bench-routes bench-scale test test-pure coverage interop services sim swarm mutants chaos spark-chaos fuzz lint fmt clean browser

# A process that starts without bytecode compiles everything again, which doubles what its start costs.
export PYTHONDONTWRITEBYTECODE :=

COMPILED := $(VENV)/.compiled
BYTECODE := $(VENV)/.bytecode
PYX := $(shell find src -name '*.pyx' -o -name '*.pxd')

setup: $(STAMP) $(COMPILED) $(BYTECODE)

$(STAMP): requirements/dev.txt pyproject.toml tools/setup.sh tools/packages.sh
	PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/setup.sh
	@touch $(STAMP)

# The optional compiled parts, next to their sources; without a C compiler one line says so.
$(COMPILED): $(STAMP) $(PYX) tools/compile.py
	$(BIN)/python tools/compile.py
	@touch $(COMPILED)

# As an installation would.
$(BYTECODE): $(STAMP) $(shell find src -name '*.py')
	$(BIN)/python -m compileall -q src/twinlog
	@touch $(BYTECODE)

# Tests with targets of their own.
APART := interop or chaos or dist or browser or services
# Most of the time is spent waiting for processes, so three at once; slow files come first in the order
# of their folders, and the many quick unit tests fill the end.
test: setup
	$(BIN)/python -m pytest tests -n 3 --dist loadfile --no-loadscope-reorder -m "not ($(APART))" $(ARGS)

# The Python reference alone, as where there is no C compiler: the unit tests once more.
test-pure: setup
	TWINLOG_PURE=1 $(BIN)/python -m pytest tests/unit -n 2 --dist loadfile $(ARGS)

# Branches of the pure cores (listed in pyproject.toml) that unit tests run; the compiled parts are left
# out. Red below 100 %.
coverage: export TWINLOG_PURE = 1
coverage: setup
	@mkdir -p .cache
	$(BIN)/coverage run -m pytest -q tests/unit/ha tests/unit/message tests/unit/controller \
		tests/unit/runtime/test_watermark.py tests/unit/broker/test_durability.py tests/unit/store/test_cleaner.py
	$(BIN)/coverage report --fail-under 100

# Apache RocketMQ and foreign clients, fetched once into .cache/ by the first test that needs them.
interop: setup
	$(BIN)/python -m pytest tests/interop -m interop $(ARGS)

# Real services (etcd, Prometheus, an object store), installed by tools/services.sh where it may.
services: setup
	bash tools/services.sh
	$(BIN)/python -m pytest tests/services -n 2 -m services $(ARGS)

# A local cluster in the background; ARGS="--brokers 3 --sync" as `twinlog up` takes them.
up: setup
	$(BIN)/twinlog up $(ARGS)

down: setup
	$(BIN)/twinlog down $(ARGS)

# ONLY=append,recovery picks rows; QUICK=1 takes under 3 minutes; DOCS=1 renders docs/BENCHMARKS.md.
bench: setup
	$(BIN)/python tools/bench

# A controlled group under faults, next to Apache's: gaps, balance of what was acknowledged. ROWS=switch
# TIMES=100 picks; results are kept in tools/bench/failover.jsonl, DOCS=1 renders them.
bench-failover: setup
	$(BIN)/python tools/bench/failover.py

# What a message costs as log, topics, connections and consumers grow; about 15 minutes, 12 GB of disk.
bench-scale: setup
	$(BIN)/python tools/bench/scale.py

# What 1,000 groups, 100,000 topics and 100,000 clients ask of one name server; some minutes.
bench-routes: setup
	$(BIN)/python tools/bench/routes.py

# Replication, and whole brokers, on virtual time under faults. SEED=7 WORLD=group DIALECT=twin replays
# one with its trace; SEEDS=20000 are shared by all kinds. In parts: FIRST=5000 RESULTS=file, which
# `python tools/simulate.py --totals file` adds up; tools/sim.jsonl has the runs so far.
sim: setup
	$(BIN)/python tools/simulate.py $(if $(SEED),--seed $(SEED),--count $(SEEDS)) \
		--world $(or $(WORLD),all) --dialect $(or $(DIALECT),all) --first $(or $(FIRST),0) \
		$(if $(RESULTS),--results $(RESULTS)) $(ARGS)

# Controlled groups of whole brokers, with elections, on virtual time. SEED=7 replays one with its
# trace. Runs go on where the last one ended (FIRST= begins elsewhere); RESULTS= keeps the totals,
# tools/swarm.jsonl unless said.
swarm: setup
	$(BIN)/python tools/swarm.py $(if $(SEED),--seed $(SEED),--count $(SEEDS)) \
		$(if $(FIRST),--first $(FIRST)) $(if $(RESULTS),--results $(RESULTS)) $(ARGS)

# Hand-made faults in the code of replication: the simulation must find each.
mutants: setup
	$(BIN)/python tools/mutants.py $(ARGS)

# Real processes under kill, stop, cut, slow links, full disks and damage.
chaos: setup
	bash tools/object_store.sh
	$(BIN)/python -m pytest tests -m chaos $(ARGS)

# The whole pipeline of Spark under kills of each of its parts, rows counted after each round. ROUNDS=50
# SEED=7 ONLY=spark-masters (small-group, ...) picks; SECONDS=600 ends a run; RESULTS= keeps the totals,
# tools/spark_chaos.jsonl unless said.
spark-chaos: setup
	bash tools/object_store.sh
	TWINLOG_SPARK_ROUNDS=$(or $(ROUNDS),14) TWINLOG_SPARK_SEED=$(or $(SEED),1) \
		TWINLOG_SPARK_SECONDS=$(or $(SECONDS),inf) \
		TWINLOG_SPARK_RESULTS=$(or $(RESULTS),tools/spark_chaos.jsonl) \
		$(BIN)/python -m pytest tests/spark/test_chaos.py -m chaos -s $(if $(ONLY),-k $(ONLY)) $(ARGS)

# In Debian's chromium: the console on a pair under load, and the search of the documentation site.
# Screenshots go to .cache/browser/screenshots.
browser: setup
	VENV="$(VENV)" bash tools/browser.sh
	$(BIN)/python -m pytest tests/browser -m browser -s $(ARGS)

# A pair under load, its master killed, the pipeline, a verdict; ARGS="--seconds 4" and so on.
demo: setup
	$(BIN)/twinlog demo $(ARGS)

# T seconds for each parser that reads what a peer sent, and for servers under generated requests
# (hostile); TARGETS=frame,hostile picks some. Parsers with atheris where it can be installed, by plain
# mutation otherwise.
T ?= 30
COMMA := ,
fuzz: setup
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/fuzz.txt
	$(BIN)/python tests/fuzz/run.py $(T) $(subst $(COMMA), ,$(TARGETS))

# An sdist, a wheel with the compiled parts for this machine, and a pure one, in dist/.
dist: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dist.txt
	rm -rf dist
	TWINLOG_BUILD=compiled $(BIN)/python -m hatchling build -t sdist -t wheel -d dist
	TWINLOG_BUILD=pure $(BIN)/python -m hatchling build -t wheel -d dist
	$(BIN)/python -m pytest tests/packaging -m dist $(ARGS)
	@ls -l dist

# The documentation as a site with search, in .cache/site/. Links that lead nowhere are errors, and so is
# anything that a page would load from another host.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=tools $(BIN)/python -m mkdocs build --strict --quiet
	@echo "docs: .cache/site/index.html"

# Everything that a release needs, except the commit, the tag and the upload: it prints those. VERSION=0.2.0;
# URL=https://... is the address of the project in the metadata of the packages.
release: export TWINLOG_PROJECT_URL = $(URL)
release: setup
	$(BIN)/python tools/release.py "$(VERSION)"
	$(MAKE) lint docs dist
	@$(BIN)/python tools/release.py "$(VERSION)" --next

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/tidy.py

fmt: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist
	find src -name "*.so" -delete
