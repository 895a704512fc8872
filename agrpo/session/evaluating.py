"""Evaluates weights of a run: a server for them, a process that answers and scores, the numbers into the store."""

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from agrpo.errors import AgrpoError, BadInput
from agrpo.evaluation.result import values_of
from agrpo.evaluation.server import hidden_gpus, serving
from agrpo.evaluation.tasks import fingerprint
from agrpo.inference.client import is_healthy
from agrpo.launch import exits
from agrpo.launch.child import ChildSpec
from agrpo.runfile import RunFile
from agrpo.session import specs
from agrpo.session.placement import placement, visible_gpus
from agrpo.session.stored import settings_of
from agrpo.settings import DataSettings
from agrpo.store import Store, checkpoints, evaluations, runs
from agrpo.store.evaluations import Evaluation


def to_evaluate(store: Store, run_id: str, data: DataSettings | None = None) -> RunFile:
    """What a run was begun with, in the folder where it lies, to be evaluated on `data` if that is given.

    Raises BadInput when there is no run file of that name.
    """
    stored = runs.get_run(store, run_id)
    run = settings_of(stored).kept_in(stored.run_dir)
    if data is None:
        return run
    return run.model_copy(update={"evaluation": run.evaluation.model_copy(update={"data": data})})


def evaluate_run(store: Store, run: RunFile, step: int | None = None, url: str | None = None) -> Evaluation:
    """Evaluate a checkpoint of a run as `run` says, by default the last one, or the model it began with (step 0).

    `url` names a server that serves these weights already. An evaluation that is there is not made again. Raises
    BadInput for a step without a checkpoint.
    """
    if step == 0:
        return evaluate_model(store, run, 0, run.model.path, url)
    found = {row.step: row.path for row in checkpoints.all(store, run.name)}
    last = runs.get_run(store, run.name).checkpoint_step if step is None else step
    if last is None or not found:
        raise BadInput(f"run {run.name!r} has no checkpoint yet: wait for one, or take step 0, the model it began with")
    if last not in found:
        there = ", ".join(map(str, found))
        raise BadInput(f"step {last}: run {run.name!r} has no checkpoint of it; it has those of steps 0, {there}")
    return evaluate_model(store, run, last, found[last], url)


def evaluate_model(store: Store, run: RunFile, step: int, model: str, url: str | None = None) -> Evaluation:
    """Evaluate any weights as a run would: its held-out prompts, its rewards, its sampling."""
    tasks = fingerprint(run)
    known = evaluations.finished(store, model, tasks)
    if known is not None:
        return known
    if url is not None and not is_healthy(url):
        raise BadInput(f"--url {url}: nobody answers there; name a server that serves these weights, or leave it out")
    evaluation_id = evaluations.begin(store, run.name, step, model, tasks)
    with _server(run, model, url) as address:
        _answer(store, run, evaluation_id, address)
    evaluations.finish(store, evaluation_id, values_of(store, run, evaluation_id))
    done = evaluations.finished(store, model, tasks)
    assert done is not None
    return done


def _server(run: RunFile, model: str, url: str | None) -> AbstractContextManager[str]:
    if url is not None:
        return nullcontext(url)
    spec = lone_server(run, model)
    assert spec.url is not None and not callable(spec.command)
    log_path = run.run_dir / "logs" / "evaluation-server.log"
    return serving(list(spec.command), dict(spec.env), spec.url, log_path, run.servers.start_timeout_s)


def lone_server(run: RunFile, model: str) -> ChildSpec:
    """One server for these weights, and no trainer beside it: a machine's only GPU is the server's."""
    changed = {
        "model": run.model.model_copy(update={"path": model}),
        "servers": run.servers.model_copy(update={"urls": [], "count": 1}),
    }
    if len(visible_gpus()) == 1:
        changed["trainer"] = run.trainer.model_copy(update={"gpus": []})
    served = run.model_copy(update=changed)
    return specs.server(served, 0, placement(served))


def _answer(store: Store, run: RunFile, evaluation_id: int, url: str) -> None:
    where = ["--store", store.url, "--run", run.name, "--evaluation", str(evaluation_id), "--url", url]
    where += ["--settings", run.evaluation.model_dump_json()]
    command = [sys.executable, "-m", "agrpo.evaluation.main", *where]
    ended = subprocess.run(command, env=hidden_gpus(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ended.returncode == exits.BAD_INPUT:
        raise BadInput(ended.stderr.rpartition(exits.REFUSAL)[2].strip())
    if ended.returncode != exits.DONE:
        raise AgrpoError(f"the evaluation {exits.describe(ended.returncode)}; its last words:\n{ended.stderr[-4000:]}")


def result_path(run: RunFile) -> Path:
    """Where the weights that a lineage promoted last are linked."""
    return Path(run.output) / run.name / "promoted"
