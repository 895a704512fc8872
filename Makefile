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
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/python scripts/check_migrations.py
	.venv/bin/python scripts/check_docs.py

clean:
	rm -rf .venv .cache build *.egg-info
