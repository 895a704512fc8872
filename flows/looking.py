"""Commands that look at runs and at the machine. Each imports what it needs: most answer in a second."""

from pathlib import Path
from typing import Literal

from flows.options import AnyCount, AnyStep, AsJson, Port, StoreUrl


def rollouts(
    run: str,
    *,
    step: AnyStep = None,
    group: AnyStep = None,
    status: Literal["open", "pending", "trained", "dropped"] | None = None,
    limit: AnyCount = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> int:
    """Read the conversations of a run, with rewards, advantages, policy versions and what became of them.

    Example: agrpo rollouts quickstart --step 3

    Parameters
    ----------
    step
        Only those trained in this step.
    group
        Only those of this group.
    status
        Only those with this fate.
    limit
        How many at most, the newest; 20 unless as JSON.
    store
        The store's URL, where it is neither AGRPO_DATABASE_URL nor the default.
    as_json
        Print one JSON object a line, all of them unless limited.
    """
    from agrpo.cli.rollouts import print_rollouts

    print_rollouts(store, run, step, group, status, limit, as_json)
    return 0


def why(run: str, *, store: StoreUrl = None, as_json: AsJson = False) -> int:
    """Say in words what limits a run and whether it still learns.

    Example: agrpo why quickstart

    Parameters
    ----------
    store
        The store's URL, where it is neither AGRPO_DATABASE_URL nor the default.
    as_json
        Print one JSON list with the numbers behind the words.
    """
    from agrpo.cli.why import print_diagnoses

    print_diagnoses(store, run, as_json)
    return 0


def plot(run: str, *others: str, output: Path | None = None, store: StoreUrl = None) -> int:
    """Draw a run, or several on the same axes: plot.png, and plot.html that needs nothing else.

    Example: agrpo plot quickstart

    Parameters
    ----------
    others
        Further runs to compare with.
    output
        Folder for both files; the run's own where it is left out.
    store
        The store's URL, where it is neither AGRPO_DATABASE_URL nor the default.
    """
    from agrpo.cli.plot import plot_runs

    for path in plot_runs(store, [run, *others], output):
        print(path)
    return 0


def doctor(run_file: Path | None = None, *, as_json: AsJson = False) -> int:
    """Check versions, vLLM, ports, store, memory and GPUs, and say what to do; 1 when something is in the way.

    Example: agrpo doctor examples/quickstart.yaml

    Parameters
    ----------
    run_file
        Check what this run needs too: its servers, its store, its GPUs.
    as_json
        Print one JSON list.
    """
    from agrpo.cli.doctor import print_findings
    from flows.beforehand import load_secrets

    return print_findings(run_file, as_json, beforehand=load_secrets)


def ui(*, port: Port = 4200) -> int:
    """Show past and present runs in Prefect's UI until Ctrl-C.

    Example: agrpo ui --port 4300

    Parameters
    ----------
    port
        Where it listens, on loopback only.
    """
    from flows.interface import serve_interface

    serve_interface(port)


LOOKING = (rollouts, why, plot, doctor, ui)
