"""One evaluation through one server: `python -m agrpo.evaluation.main --store URL --run RUN --evaluation ID ...`."""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from agrpo import runfile
from agrpo.evaluation.answering import answer_all, spec_of_evaluation
from agrpo.evaluation.server import FixedServer
from agrpo.launch import exits
from agrpo.rollout.worker import WorkerSpec
from agrpo.store import Store, runs


async def evaluate(spec: WorkerSpec, url: str, store: Store, evaluation_id: int) -> None:
    """Answer every held-out prompt through the server at `url`."""
    server = FixedServer(url, spec.config.vllm_server_timeout)
    try:
        await answer_all(spec, server, store, evaluation_id)
    finally:
        await server.close()


def main(arguments: Sequence[str]) -> None:
    """Read the command line, then evaluate."""
    parser = argparse.ArgumentParser(prog="python -m agrpo.evaluation.main", description="Scores held-out prompts.")
    parser.add_argument("--store", required=True, help="URL of the store")
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--evaluation", required=True, type=int, help="number of the evaluation")
    parser.add_argument("--settings", required=True, help="section `evaluation` of a run file, as JSON")
    parser.add_argument("--url", required=True, help="address of the server that serves the weights")
    options = parser.parse_args(arguments)
    store = Store.open(options.store, create=False)
    config = {**runs.get_run(store, options.run).config, "evaluation": json.loads(options.settings)}
    run = runfile.parse(config, f"run {options.run}")
    spec = spec_of_evaluation(options.store, run, token=0)
    asyncio.run(evaluate(spec, options.url, store, options.evaluation))
    store.close()


if __name__ == "__main__":
    exits.run(lambda: main(sys.argv[1:]))
