# Everything sets itself up: a virtual environment in .venv, with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What runs the broker, and what runs the tests (with Spark, which is large).
MADE := $(VENV)/.made
SERVES := $(VENV)/.serves
READY := $(VENV)/.ready
BROWSER := $(VENV)/.browser
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
SEEDS ?= 1000
KILLS ?= 200
ROUNDS ?= 200
EXAMPLES ?= 500
INPUTS ?= 1000000
SECONDS ?= 30
MINUTES ?= 60
JOBS ?= 2
# Tests start hundreds of processes, which should not all compile the same modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "OnceMQ needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(SERVES): $(MADE) pyproject.toml constraints.txt
	$(INSTALL) '.[http,progress,secure,shell]'
	@touch $@

# pip compiles on one core, and the packages' own tests too.
$(READY): $(MADE) pyproject.toml constraints.txt
	$(INSTALL) '.[dev]' --no-compile
	-$(BIN)/python -m compileall -qq -j $(JOBS) -x '/tests/' $(VENV)/lib
	@touch $(SERVES) $@

# Where there is no Chromium, apt installs its smallest form; without one, only the tests of pages fail.
$(BROWSER): $(READY)
	-@$(BIN)/python -m tests.browser && touch $@

.PHONY: help serve demo test test-cluster lint format hooks docs bench bench-http bench-postgres bench-push bench-others bench-security bench-spark simulate fuzz fuzz-http hostile crash crash-spark crash-checkpoints soak reference constraints

help: ## Say what there is to do
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

serve: $(SERVES) ## Run a broker on ./oncemq-data
	@exec $(BIN)/oncemq serve

demo: $(SERVES) ## Kill a broker and its clients for SECONDS, and show that nothing is lost (SECONDS=60, SEED=7)
	@$(BIN)/oncemq chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

test: lint $(BROWSER) ## Check style and types, then run all tests
	$(BIN)/python -m pytest -n $(JOBS) -p tests.spark.scheduling

test-cluster: $(READY) ## Run the tests that take Spark long: a cluster of two workers, declarative pipelines
	$(BIN)/python -m pytest -m cluster tests/spark

lint: $(READY) ## Check style, formatting, import rules and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/mypy --num-workers $(JOBS)

format: $(READY) ## Format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

hooks: $(READY) ## Run the checks of make lint before each commit and push
	$(BIN)/pre-commit install --hook-type pre-commit --hook-type pre-push

docs: $(READY) ## Build the documentation site into site/; a broken link fails
	$(BIN)/python -m sphinx --builder html --fail-on-warning --quiet docs site
	@echo "The site is in site/: open site/index.html"

bench: $(READY) ## Measure, next to the upper bounds of this machine
	$(BIN)/oncemq bench
	$(BIN)/python -m benchmarks.flat

bench-http: $(READY) ## Measure the HTTP gateway, next to a route that stores nothing
	$(BIN)/python -m benchmarks.http

bench-postgres: $(READY) ## Measure the PostgreSQL journal, next to plain COPY and INSERT
	$(BIN)/python -m benchmarks.postgres

bench-push: $(READY) ## Measure the push gateway's fan-out, next to getters and a bare XPUB
	$(BIN)/python -m benchmarks.push

bench-others: $(READY) ## Measure PostgreSQL, Redis Streams and NATS JetStream next to this broker (FLAGS="--quick --charts")
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[others]'
	$(BIN)/python -m benchmarks.others $(FLAGS)

bench-security: $(READY) ## Measure what users, TLS and CURVE cost, next to a broker without them
	$(BIN)/python -m benchmarks.security

bench-spark: $(READY) ## Measure Spark through the broker, next to Spark without one
	$(BIN)/python -m benchmarks.spark

simulate: $(READY) ## Simulate SEEDS schedules of faults (SEEDS=10000)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --jobs $(JOBS)

fuzz: $(READY) ## Send INPUTS of nonsense to the stream listener and to each of the text, push and datagram gateways (INPUTS=100000, SEED=7)
	for module in net.stream_fuzz gateways.text.fuzz gateways.udp.fuzz gateways.udp.mac_fuzz gateways.push.fuzz; do \
	  $(BIN)/python -m tests.$$module --inputs $(INPUTS) $(if $(SEED),--seed $(SEED)) || exit 1; \
	done

fuzz-http: $(READY) ## Send the HTTP gateway EXAMPLES made-up requests for each endpoint (EXAMPLES=1000, SEED=7)
	FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -n $(JOBS) tests/gateways/http/test_schemathesis.py $(if $(SEED),--hypothesis-seed $(SEED))

hostile: $(READY) ## Attack each listener with each kind of hostile peer; measure memory and others' latency (SECONDS=10, ONLY=http)
	$(BIN)/python -m tests.hostile --seconds $(SECONDS) $(if $(ONLY),--only "$(ONLY)")

crash: $(READY) ## Kill real brokers and clients, KILLS times in each campaign (KILLS=1000, ONLY=outbox, SEED=7)
	$(BIN)/python -m tests.acceptance --kills $(KILLS) $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED))

crash-spark: $(READY) ## Kill Spark's driver, its tasks and the broker, KILLS times (KILLS=50, SEED=7)
	$(BIN)/python -m tests.spark.faults --kills $(KILLS) $(if $(SEED),--seed $(SEED))

crash-checkpoints: $(READY) ## Damage the checkpoints of Spark pipelines under load, ROUNDS times (ROUNDS=200, MODEL=1 without Spark, SEED=7)
	$(BIN)/python -m tests.spark.lost_entries --rounds $(ROUNDS) $(if $(MODEL),--model) $(if $(SEED),--seed $(SEED))

soak: $(READY) ## Load all protocols for MINUTES, with kills and hostile peers, and check everything (MINUTES=10, SEED=7)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

reference: $(READY) ## Write docs/reference/ anew
	$(BIN)/python -m oncemq.cli.tools.reference

constraints: $(READY) ## Write constraints.txt from what is installed
	@{ echo "# Every version that make installs. Refresh with: make constraints"; \
	   $(BIN)/python -m pip freeze --exclude-editable; } > constraints.txt
