# `make` or `make help` lists the targets with the text after `##`.
.DEFAULT_GOAL := help
STACK ?= local

.PHONY: help install demo check test test-matrix lint bench compose-test soak clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

install: .venv/installed ## create .venv with pinned versions and outboxctl

.venv/installed: pyproject.toml constraints.txt scripts/install
	@scripts/install

demo: install ## 10,000 orders through the whole pipeline, processes killed meanwhile, event ids compared (STACK=local|compose)
	@scripts/demo --stack $(STACK)

check: install ## lint, unit and architecture tests: no server, under a minute
	@scripts/check

test: install ## all checks and tests, on stacks of their own
	@scripts/test

test-matrix: install ## the database tests on PostgreSQL 14, 15, 16, 17 and 18
	@scripts/test --matrix

lint: install ## ruff, mypy --strict, import rules
	@scripts/lint

bench: install ## latency and throughput next to Debezium's defaults and hand-written loops
	@.venv/bin/python scripts/bench

compose-test: install ## Docker Compose: up, send, check the effects, down (skipped where no engine answers)
	@scripts/compose-test

soak: install ## the long form of tests: kills for ten minutes, a queue of 24 hours, a million jobs
	@scripts/soak

clean: ## stop the local stacks and remove everything that they and make created
	@scripts/clean
