"""The `agrpo` command. What needs no Prefect lives in agrpo/cli and is reached without importing it."""

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError

from agrpo.cli.runs import print_runs
from agrpo.cli.show import print_run
from agrpo.cli.stores import opened
from agrpo.errors import AgrpoError, BadInput, StoreOutage
from agrpo.launch.exits import BAD_INPUT, FAILED
from agrpo.store import command
from agrpo.store import runs as stored_runs
from flows.judging import JUDGING
from flows.looking import LOOKING
from flows.options import AsJson, Overrides, Step, StoreUrl, Switch
from flows.prefecting import PREFECTING

if TYPE_CHECKING:
    from agrpo.runfile import RunFile

app = App(
    name="agrpo",
    help="Train language models by asynchronous GRPO.",
    version=lambda: metadata.version("agrpo"),
    version_flags=["--version"],
)

for _one in (*LOOKING, *JUDGING, *PREFECTING):
    app.command(_one)


@app.command
def train(run_file: Path, *, override: Overrides = (), dry_run: Switch = False, as_json: AsJson = False) -> int:
    """Train what a run file says; the same name and settings continue where the run stopped.

    Example: agrpo train examples/quickstart.yaml --set trainer.learning_rate=1e-5

    Parameters
    ----------
    override
        A setting to change, as section.key=value; may be given again.
    dry_run
        Check the run file and everything it names, start nothing.
    as_json
        Print the summary at the end as JSON.
    """
    from agrpo import runfile  # its models take a fifth of a second that `show` need not spend

    run = runfile.load(run_file, override)
    if dry_run:
        print(f"{run_file}: {_looked_at(run)}")
        return 0
    return _run(run, as_json)


@app.command
def resume(run: str, *, accept_new_data: Switch = False, store: StoreUrl = None, as_json: AsJson = False) -> int:
    """Continue a run from its last checkpoint, with the settings it was started with.

    Example: agrpo resume quickstart

    Parameters
    ----------
    accept_new_data
        Go on although the data set has changed since the run began.
    store
        The store's URL, where it is neither AGRPO_DATABASE_URL nor the default.
    as_json
        Print the summary at the end as JSON.
    """
    from agrpo.session.stored import settings_of

    with opened(store) as opened_store:
        opened_store.migrate()
        go_on = command(f"resume {run}", opened_store.url)
        stored = stored_runs.get_run(opened_store, run)
        if accept_new_data:  # of a script's run, too, which only the script goes on with
            stored_runs.accept_data(opened_store, run)
            print(f"run {run} takes the data set that it finds next", file=sys.stderr)
        settings = settings_of(stored)
        # It wins over every other place, here and in the processes of the run.
        os.environ["AGRPO_DATABASE_URL"] = opened_store.url
    return _run(settings, as_json, go_on)


@app.command
def worker(run: str, *, store: StoreUrl = None) -> int:
    """Work for a run on this machine: generate and score, until it is finished. Started on every further machine.

    Example: agrpo worker several-machines --store postgresql://agrpo@database/agrpo

    Parameters
    ----------
    store
        The URL of the run's store, where it is neither AGRPO_DATABASE_URL nor the default.
    """
    from agrpo.cli.worker import work

    return work(store, run)


@app.command
def runs(*, store: StoreUrl = None, as_json: AsJson = False) -> int:
    """List every run.

    Example: agrpo runs --json

    Parameters
    ----------
    store
        The store's URL, where it is neither AGRPO_DATABASE_URL nor the default.
    as_json
        Print one JSON list.
    """
    print_runs(store, as_json)
    return 0


@app.command
def show(run: str, *, store: StoreUrl = None, as_json: AsJson = False) -> int:
    """Show what became of a run.

    Example: agrpo show quickstart --json

    Parameters
    ----------
    store
        The store's URL, where it is neither AGRPO_DATABASE_URL nor the default.
    as_json
        Print one JSON object.
    """
    print_run(store, run, as_json)
    return 0


@app.command
def verify(run: str, *, store: StoreUrl = None, as_json: AsJson = False) -> int:
    """Check the ledger of a run: order, accounting, versions and every stored array; 1 when something is wrong.

    Example: agrpo verify quickstart --json

    Parameters
    ----------
    store
        The store's URL, where it is neither AGRPO_DATABASE_URL nor the default.
    as_json
        Print one JSON object with the offending rows.
    """
    from agrpo.cli.verify import print_verification  # numpy takes a third of a second that `show` need not spend

    return print_verification(store, run, as_json)


@app.command
def replay(
    run: str,
    *,
    to_step: Step,
    from_step: Step = 0,
    check: Switch = False,
    output: Path | None = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> int:
    """Make the steps of a run again from its ledger and compare: 0 equal, 1 different, 3 not comparable.

    Example: agrpo replay quickstart --to-step 10 --check

    Parameters
    ----------
    to_step
        The last step to make.
    from_step
        The step to begin after, which must have a checkpoint; 0 is the model the run began with.
    check
        Only compare; keep no checkpoint of the last step.
    output
        Folder of that checkpoint; the run's replays/step-N where it is left out.
    store
        The store's URL, where it is neither AGRPO_DATABASE_URL nor the default.
    as_json
        Print one JSON object with the digest of every step.
    """
    from agrpo.cli.replay import print_replay

    return print_replay(store, run, to_step, from_step, check, output, as_json)


@app.command
def fork(run: str, *, step: Step, name: str, override: Overrides = (), store: StoreUrl = None) -> int:
    """Make a new run that begins where another one was after a step; it shares the rows up to there.

    Example: agrpo fork quickstart --step 10 --name warmer --set trainer.temperature=1.2

    Parameters
    ----------
    step
        The last step that both runs share; 0 shares none.
    name
        Name of the new run.
    override
        A setting to change, as section.key=value; may be given again.
    store
        The store's URL, where it is neither AGRPO_DATABASE_URL nor the default.
    """
    from agrpo.cli.fork import fork_run

    print(fork_run(store, run, step, name, override))
    return 0


@app.command
def rewards(*, as_json: AsJson = False) -> int:
    """List the reward functions that come with agrpo.

    Example: agrpo rewards

    Parameters
    ----------
    as_json
        Print one JSON list.
    """
    from agrpo.cli.rewards import print_rewards

    print_rewards(as_json)
    return 0


def _run(run: "RunFile", as_json: bool, go_on: str | None = None) -> int:
    from flows.console import run_flow  # Prefect takes two seconds to import

    return run_flow(run, as_json, go_on)


def _looked_at(run: "RunFile") -> str:
    """The same questions in the same order as before a training; nothing is started or changed."""
    from agrpo.session.check import check_data, check_input, find_begun
    from flows.beforehand import load_secrets

    found, unasked = None, ""
    try:
        found = find_begun(run, migrate=False)
    except StoreOutage as error:  # a file may be looked at where its database cannot be reached
        unasked = f"; whether its name is free is not known: {error}"
    if found is not None and found.status == "finished":
        return f"run '{run.name}' is finished already; nothing would be done"
    load_secrets(run)
    check_input(run)
    check_data(run)
    return f"fine; run '{run.name}' would keep its files in {run.run_dir if found is None else found.run_dir}{unasked}"


def main() -> None:
    """Entry point: 0 done, 1 failed, 2 bad input; a bug keeps its traceback."""
    try:
        code = app(exit_on_error=False, print_error=True, result_action="return_value")
    except CycloptsError:
        sys.exit(BAD_INPUT)
    except BadInput as error:
        sys.exit(_say(error, BAD_INPUT))
    except AgrpoError as error:
        sys.exit(_say(error, FAILED))
    sys.exit(code)


def _say(error: AgrpoError, code: int) -> int:
    print(f"agrpo: {error}", file=sys.stderr)
    return code
