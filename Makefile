.PHONY: setup quickstart test test-long test-prefect screenshots test-verifiers check chaos clean

setup:
	@scripts/set_up.sh

quickstart: setup
	@.venv/bin/python -m agrpo.models smollm2-135m-instruct
	@.venv/bin/agrpo train examples/quickstart.yaml

test: setup
	@OMP_NUM_THREADS=1 .venv/bin/python -m pytest -m "not alone and not long" -n 2 --dist loadfile
	@.venv/bin/python -m pytest -m "alone and not long"

# Further tests with real processes, some minutes: several workers and ranks, jumping clocks, changed data, PostgreSQL.
test-long: setup
	@.venv/bin/python -m pytest -m long

# Deploys, launches, kills, cancels and pauses runs with a real Prefect server and worker; another Prefect than the
# installed one with PREFECT=3.9.1.
PREFECT ?=
test-prefect: setup
	@$(if $(PREFECT),export AGRPO_END_TO_END_PYTHON=$$(scripts/prefect_environment.sh $(PREFECT)) &&) \
		.venv/bin/python -m pytest end_to_end -rP

# Takes pictures of Prefect's UI in headless Chromium for docs/images.
screenshots: setup
	@.venv/bin/python -m end_to_end.screenshots

# Plays tasks of verifiers, which cannot be installed beside vLLM, in an environment of its own.
test-verifiers: setup
	@python=$$(scripts/environment_with.sh verifiers 'verifiers>=0.4' uv) && $$python -m pytest -q adapter_tests

check: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy agrpo flows tasks
	.venv/bin/lint-imports
	@folder=$$(mktemp -d) && export AGRPO_DATABASE_URL=sqlite:///$$folder/agrpo.db && \
		.venv/bin/alembic upgrade head && .venv/bin/alembic check; status=$$?; rm -r $$folder; exit $$status
	.venv/bin/python -m pytest tests/test_docs.py tests/store/test_schema_doc.py

# Kills processes of a run N times and writes what came of it to docs/durability-results.md; 200 take half an hour.
N ?= 200
chaos: setup
	@.venv/bin/python -m tests.chaos.many $(N)

clean:
	rm -rf .venv .cache build *.egg-info
