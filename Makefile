# `make run` and `make test` are all a newcomer needs. `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

SCRIPTS := scripts/freeze scripts/previous scripts/services scripts/mutants .ci/run

# nextest where it is installed (it leaves out examples in docs, so those follow);
# a fresh machine has only cargo.
TEST_ALL := if cargo nextest --version >/dev/null 2>&1; \
	then cargo nextest run --workspace --locked --no-fail-fast && cargo test --workspace --locked --doc; \
	else cargo test --workspace --locked --no-fail-fast; fi

.PHONY: help run test test-long seeds storm mutants check bench

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

run: ## build Rota and serve a demo job; Ctrl-C stops
	cargo build --release --locked --package rota
	target/release/rota serve --demo --data target/rota-data

test: ## run every test, with the servers they need
	@scripts/services with $(SHELL) $(.SHELLFLAGS) '$(TEST_ALL)'

test-long: seeds ## the same, with the long sweeps and soaks, and beside the release before
	@previous=$$(scripts/previous) && ROTA_LONG=1 ROTA_TEST_PREVIOUS="$$previous" scripts/services with $(SHELL) $(.SHELLFLAGS) '$(TEST_ALL)'

seeds: ## stories of the simulator, with an optimised build; COUNT=10000
	ROTA_SIM_SEEDS='$(or $(COUNT),10000)' cargo test --profile sweep --locked --package rota-engine --test engine -- \
	simulation::every_promise

storm: ## everything at once on real processes; SECONDS=600 SEED=1 WITH= WITHOUT= ONLY=
	@ROTA_STORM_SECONDS='$(SECONDS)' ROTA_STORM_SEED='$(SEED)' \
	ROTA_STORM_WITH='$(WITH)' ROTA_STORM_WITHOUT='$(WITHOUT)' ROTA_STORM_ONLY='$(ONLY)' \
	scripts/services with cargo test --locked --package rota --test it -- --nocapture --exact \
	storm::nothing_is_missed_and_nothing_is_repeated_in_a_storm

mutants: ## would a test notice? FILES= (or --all), BASE=, SHARD=0/8
	@BASE='$(BASE)' SHARD='$(SHARD)' scripts/mutants $(FILES)

check: ## format, lints, scripts, project rules, licences
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@for script in $(SCRIPTS); do bash -n "$$script"; done
	@if command -v shellcheck >/dev/null; then shellcheck $(SCRIPTS); fi
	cargo test --locked --package rota-core --test tidy
	@if command -v cargo-deny >/dev/null; then cargo deny check; \
	else echo 'cargo-deny is not installed: advisories were not looked up (licences and banned crates were)'; fi

bench: ## measure the stores and the engine on this machine
	cargo build --release --locked --package rota
	target/release/rota bench store
	target/release/rota bench engine
	@scripts/services with $(SHELL) $(.SHELLFLAGS) 'target/release/rota bench store --store "$$ROTA_TEST_POSTGRES"'
