.PHONY: setup quickstart test check clean

setup:
	@scripts/set_up.sh

quickstart: setup
	@.venv/bin/python -m agrpo.models smollm2-135m-instruct
	@.venv/bin/agrpo train examples/quickstart.yaml

test: setup
	@.venv/bin/python -m pytest

check: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy agrpo flows tasks
	.venv/bin/lint-imports
	@folder=$$(mktemp -d) && export AGRPO_DATABASE_URL=sqlite:///$$folder/agrpo.db && \
		.venv/bin/alembic upgrade head && .venv/bin/alembic check; status=$$?; rm -r $$folder; exit $$status
	.venv/bin/python -m pytest tests/test_docs.py

clean:
	rm -rf .venv .cache build *.egg-info
