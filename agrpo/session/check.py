"""Is all there that a run file names? Asked before anything is started or written."""

import inspect
import logging
import tempfile
from pathlib import Path

from agrpo.callables import resolve_callable
from agrpo.errors import BadInput, OldSchema, StoreError
from agrpo.evaluation.tasks import held_out_rows
from agrpo.launch.attach import refuse_other_settings
from agrpo.rollout.prompts import open_prompts
from agrpo.runfile import RunFile, config_hash, decisive, load_dataset, stored_config
from agrpo.session.placement import placement
from agrpo.store import Store, runs
from agrpo.store.runs import Run

_OURS = ("--port", "--host", "--model")


def find_begun(run: RunFile, migrate: bool = True) -> Run | None:
    """The run as the store has it already, asked before anything is imported or made.

    Without `migrate` nothing is changed, and what an older schema holds is not known. Raises BadInput when the store
    or the run's folder cannot be used, or when other settings have taken the run's name.
    """
    _check_store(run.store_url)
    found = _find(run, migrate)
    if found is None or found.status != "finished":
        _check_folder(run.run_dir if found is None else Path(found.run_dir))
    return found


def _find(run: RunFile, migrate: bool) -> Run | None:
    try:
        store = Store.open(run.store_url, create=False)
    except StoreError:  # no store yet
        return None
    try:
        if migrate:
            store.migrate()
        found = runs.find_run(store, run.name)
        if found is not None:
            refuse_other_settings(store, found, stored_config(run), config_hash(run), decisive)
        return found
    except OldSchema:
        return None
    finally:
        store.close()


def check_input(run: RunFile) -> None:
    """Raise BadInput for the first thing that a run could not use."""
    if run.data is not None and run.data.rows is not None:
        resolve_callable(run.data.rows)
    for path in run.rewards:
        reward = resolve_callable(path)
        if inspect.isfunction(reward) and reward.__name__ == "<lambda>":
            raise BadInput(f"rewards: '{path}' is a lambda, which no other process can import; write a def")
    for named in [*run.tools, *run.environment.paths, run.loop]:
        if named is not None:
            resolve_callable(named)
    _check_training_arguments(run)
    _check_model(run)
    _check_server_arguments(run)
    placement(run)
    _check_store(run.store_url)


def check_data(run: RunFile) -> None:
    """Load the rows and look at the first one, and at those to evaluate on. Raises BadInput when one is no prompt."""
    import datasets

    datasets.disable_progress_bars()  # an answer is one line
    datasets.logging.set_verbosity(logging.CRITICAL)
    dataset = load_dataset(run)
    if dataset is not None:
        prompts = open_prompts(dataset, None, needs_prompt=not run.environment.paths)
        prompts.stop_index(1)
        prompts.prompt(0)
    if run.evaluation.data is not None or run.evaluation.steps is not None:
        held_out_rows(run)


def _check_training_arguments(run: RunFile) -> None:
    if run.trainer.training_arguments or run.trainer.config is not None:
        from agrpo.trainer.run_config import config_class  # torch takes seconds to import

        config_class(run)


def _check_model(run: RunFile) -> None:
    """A Hub name cannot be checked without a network, but what looks like a path must be a saved model."""
    path = Path(run.model.path)
    if run.model.prepare is not None or (path / "config.json").is_file():
        return
    if _looks_like_path(run.model.path):
        raise BadInput(f"model.path: {path} holds no saved model (no config.json); give a model's folder or a Hub name")
    from huggingface_hub import constants, try_to_load_from_cache

    keywords = run.trainer.model_init_kwargs or {}
    place = {key: keywords[key] for key in ("cache_dir", "revision") if key in keywords}
    if constants.HF_HUB_OFFLINE and not isinstance(try_to_load_from_cache(str(path), "config.json", **place), str):
        raise BadInput(
            f"model.path: there is no folder {path}, and no such model in the Hub's cache while HF_HUB_OFFLINE is set; "
            "mend the path, or unset it once to download the model"
        )


def _looks_like_path(name: str) -> bool:
    """A Hub name is one word, or an owner and a word."""
    path = Path(name)
    begins_here = len(path.parts) == 2 and Path(path.parts[0]).is_dir()
    return path.is_absolute() or name.startswith(".") or len(path.parts) > 2 or begins_here or path.exists()


def _check_server_arguments(run: RunFile) -> None:
    for argument in run.servers.args:
        name = argument.partition("=")[0]
        if name in _OURS:
            raise BadInput(f"servers.args: {argument} is chosen by agrpo (a free port on loopback); leave it out")


def _check_store(url: str) -> None:
    try:
        Store.check_place(url)
    except StoreError as error:
        raise BadInput(str(error)) from None


def _check_folder(folder: Path) -> None:
    """What is made later needs the nearest folder that is there; a passing file tells more than permissions."""
    nearest = next(there for there in (folder.absolute(), *folder.absolute().parents) if there.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"output: {folder} cannot be written ({reason}); name another folder") from None
