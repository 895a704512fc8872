"""Commands that evaluate runs and decide about them."""

from pathlib import Path

from flows.options import AnyStep, AsJson, Overrides, StoreUrl


def evaluate(
    run: str,
    *,
    step: AnyStep = None,
    url: str | None = None,
    data: str | None = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> int:
    """Mean reward and pass@k of a checkpoint on held-out prompts, with 95 % intervals.

    Example: agrpo evaluate quickstart --step 6

    Parameters
    ----------
    step
        The checkpoint's step; the last one where it is left out, 0 for the model that the run began with.
    url
        A server that serves these weights already; a vLLM server is started where it is left out.
    data
        The prompts: folder/file.py:function, package.module:function, or a dataset's path; those of the run file's
        section `evaluation` where it is left out.
    store
        The store's URL, where it is neither AGRPO_DATABASE_URL nor the default.
    as_json
        Print one JSON object.
    """
    from agrpo.cli.evaluate import print_evaluation
    from flows.beforehand import load_secrets

    print_evaluation(store, run, step, url, data, as_json, beforehand=load_secrets)
    return 0


def nightly(run_file: Path, *, override: Overrides = (), simulate: int | None = None) -> int:
    """Train from the weights promoted last, evaluate against them, promote only what is significantly better.

    Example: agrpo nightly examples/quickstart.yaml --simulate 3

    Parameters
    ----------
    override
        A setting to change, as section.key=value; may be given again.
    simulate
        So many nights at once, every second one spoilt by a step that ruins the weights.
    """
    from flows.nights import run_nights

    return run_nights(run_file, override, simulate)


JUDGING = (evaluate, nightly)
