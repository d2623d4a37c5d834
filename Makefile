# The menu: `make` or `make help` prints what stands behind the `##`.
.DEFAULT_GOAL := help
STACK ?= local

.PHONY: help install demo check test test-matrix lint bench compose-test soak clean

help: ## print this menu
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

install: .venv/installed ## make .venv with pinned versions and outboxctl in it

.venv/installed: pyproject.toml constraints.txt scripts/install
	@scripts/install

demo: install ## the main job: 10,000 orders through the whole road, with kills, and a ledger (STACK=local|compose)
	@scripts/demo --stack $(STACK)

check: install ## style, types, import rules, unit and architecture tests: no server, under a minute
	@scripts/check

test: install ## every check and test on a stack of its own
	@scripts/test

test-matrix: install ## the database tests on PostgreSQL 14, 15, 16, 17 and 18
	@scripts/test --matrix

lint: install ## ruff, mypy --strict, import rules
	@scripts/lint

bench: install ## latency and throughput against Debezium's defaults and plain loops, side by side
	@.venv/bin/python scripts/bench

compose-test: install ## docker compose: up, send, read the effects, down (skips where no engine answers)
	@scripts/compose-test

soak: install ## the long forms: kills for ten minutes, storms, a queue of 24 hours; each with its ledger
	@scripts/soak

clean: ## stop the local stacks and remove everything they and make left here
	@scripts/clean
