# Every target works as root and as a plain user. Paths are relative, so that the checkout may lie anywhere.
PYTHON ?= python3
ARGS ?=
WORKERS ?= 4 # test processes; most tests wait for something, so there are more than cores
# As collected: else files with few tests come last, which are the slow ones, and all wait for the last of them.
IN_PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
STAMP := .venv/.installed
# uv resolves for all Pythons at once. Another release of it may write the lock in another way.
UV := 0.13.8
# Hundreds of processes of the tests import us: where nothing is kept compiled, each compiles all of it, for 0.2 s.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: stops mutants help venv lock demo csv-payments test depth chaos soak soak-pipelines limits soak-steps bench bench-pairs bench-memory bench-peers bodies growth slots django6 python313 check figures schema clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

venv: $(STAMP) ## Create .venv with everything for development, as requirements/dev.lock pins it

lock: ## Write requirements/dev.lock again; ARGS="--upgrade" for newer releases, ARGS="-P ruff" for one of them
	$(PYTHON) -m venv .venv-lock
	PIP_ROOT_USER_ACTION=ignore .venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
	.venv-lock/bin/uv pip compile --quiet pyproject.toml --extra dev --universal --python-version 3.11 \
		--fork-strategy fewest --generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --output-file requirements/dev.lock $(ARGS)

demo: $(STAMP) ## Run the demo on the embedded Postgres
	.venv/bin/stepwell demo $(ARGS)

csv-payments: $(STAMP) ## Run 1,000 payments through a pipeline over Kafka, with kills; ARGS="--rows 10000 --rate 2000"
	.venv/bin/python -m examples.csv_payments $(ARGS)

test: $(STAMP) ## Run the tests; ARGS="tests/unit -x" to choose
	.venv/bin/python -m pytest $(IN_PARALLEL) $(ARGS)

depth: $(STAMP) ## Look at plans and costs of statements among ten times as many rows as `make test` does
	STEPWELL_DEPTH=10 .venv/bin/python -m pytest $(IN_PARALLEL) tests/store/test_plans.py \
		tests/store/test_depth.py tests/store/test_limit_depth.py tests/store/test_interaction_plans.py $(ARGS)

chaos: $(STAMP) ## Break workers, network and Postgres for five minutes; ARGS="--minutes 30 --seed 7 --postgres 15"
	.venv/bin/python -m tests.chaos $(ARGS)

soak: $(STAMP) ## Let anything happen in any order for ten minutes; STEPWELL_SOAK_SEED=… to repeat
	STEPWELL_SOAK_SECONDS=$${STEPWELL_SOAK_SECONDS:-600} .venv/bin/python -m pytest tests/soak -s $(ARGS)

soak-pipelines: $(STAMP) ## Kill workers, cancel and retry under pipelines for five minutes; STEPWELL_PIPELINES_SEED=…
	STEPWELL_PIPELINES_SECONDS=$${STEPWELL_PIPELINES_SECONDS:-300} \
		STEPWELL_PIPELINES_PROCESSES=$${STEPWELL_PIPELINES_PROCESSES:-3} .venv/bin/python -m pytest -s \
		tests/crash/pipelines/test_stress.py $(ARGS)

stops: $(STAMP) ## Halt and kill processes between all statements of all transactions; ARGS="narrow --how halt"
	.venv/bin/python -m tests.crash.stops.run $(ARGS)
	$(if $(ARGS),,STEPWELL_STOPS_ALL=1 .venv/bin/python -m pytest -n 2 tests/crash/stops/test_migrations.py)

mutants: $(STAMP) ## Break one guard of the SQL after another in a copy of the tree: some test must fail; ARGS="reap --jobs 2"
	.venv/bin/python -m tests.quality.mutants $(ARGS)

limits: $(STAMP) ## Let 8 workers, killed again and again, pass 20,000 instances through one limit
	STEPWELL_LIMITS_WORKERS=8 STEPWELL_LIMITS_INSTANCES=20000 .venv/bin/python -m pytest -s \
		tests/crash/limits/test_limits_under_fire.py $(ARGS)

bench: $(STAMP) ## Measure, beside the limit of Postgres; ARGS="drain ten_steps" to choose, --quick, --profile
	.venv/bin/python -m benchmarks.run $(ARGS)

bench-pairs: $(STAMP) ## Measure another revision and this tree in turns; ARGS="--base main~3 --pairs 5 drain"
	.venv/bin/python -m benchmarks.pairs $(ARGS)

bench-memory: $(STAMP) ## Ask about 1 million rows of a file, and look at the worker's memory and pace; takes some minutes
	.venv/bin/python -m benchmarks.run million --plain $(ARGS)

bench-peers: $(STAMP) ## Measure beside others, installed from PyPI; ARGS="dbos absurd" to choose, --quick, --try
	.venv/bin/python -m benchmarks.peers $(ARGS)

bodies: $(STAMP) ## Measure how long the worst bodies hold the event loop of a door, and a backend; ARGS="--quick"
	.venv/bin/python -m benchmarks.bodies $(ARGS)

growth: $(STAMP) ## Measure what claiming and committing 100 rows costs, whatever lies around; ARGS="held --minutes 10"
	.venv/bin/python -m benchmarks.growth.run $(ARGS)

slots: $(STAMP) ## Measure how slots are counted: by rows that execute, and by a counter beside them
	.venv/bin/python -m benchmarks.slots $(ARGS)

soak-steps: $(STAMP) ## Run 5 million steps: are throughput and sizes flat? ARGS="--steps 500000" for fewer
	.venv/bin/python -m benchmarks.soak.run $(ARGS)

python313: ## Run the tests of the parts, of the engine and of crashes on Python 3.13, if there is one
	WORKERS=$(WORKERS) bash .ci/python313 $(ARGS)

django6: ## Run the tests of the Django app under Django 6, on Python 3.12 or newer if there is one
	bash .ci/django6 $(ARGS)

check: $(STAMP) ## Lint, types, which way imports point; and the figures of the structure, which fail nothing
	.venv/bin/python -m ruff check .
	.venv/bin/python -m mypy
	.venv/bin/lint-imports
	.venv/bin/python -m tests.quality.figures

figures: $(STAMP) ## Print the figures of the structure; ARGS="--list words" to see what one counts
	.venv/bin/python -m tests.quality.figures $(ARGS)

schema: ## Say how schema.sql is made again after a migration was added
	@echo '.venv/bin/python -m tests.support.dump_schema > src/stepwell/_store/schema.sql'

clean: ## Remove the virtualenv, caches and what was built
	rm -rf .venv .venv-django6 .venv-lock .venv-python313 benchmarks/peers/.venvs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements/dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Stepwell needs Python 3.11 or newer; name one with: make PYTHON=python3.11"; exit 1; } >&2
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) can not create virtualenvs; on Debian and Ubuntu: apt install python3-venv"; exit 1; } >&2
	$(PYTHON) -m venv .venv
	bash .ci/install .venv/bin/python
	@touch $(STAMP)
