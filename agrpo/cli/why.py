"""`agrpo why RUN`: what the run's numbers mean, in words."""

import dataclasses
import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agrpo.cli.stores import opened
from agrpo.diagnoses import Diagnosis, Told, diagnose
from agrpo.store import Store, command, conversations, events, metrics, runs
from agrpo.trainer_settings import TrainerSettings

_STYLES = {"fine": "green", "look": "yellow", "act": "red"}


def print_diagnoses(store_url: str | None, run_id: str, as_json: bool) -> None:
    """Print what ended the run, what its processes died of, and what its last steps say."""
    with opened(store_url) as store:
        found = [*_ends(store, run_id), *_numbers(store, run_id)]
    if as_json:
        print(json.dumps([dataclasses.asdict(diagnosis) for diagnosis in found]))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for diagnosis in found:
        table.add_row(Text(diagnosis.level, style=_STYLES[diagnosis.level]), diagnosis.topic, Text(diagnosis.says))
    Console().print(table if found else f"{run_id} has logged no step yet: there is nothing to diagnose")


def _ends(store: Store, run_id: str) -> list[Diagnosis]:
    """What went wrong, if anything did."""
    run = runs.get_run(store, run_id)
    happened = events.events(store, run_id)
    restarts = [event for event in happened if event.kind == "restart" and event.token == run.token]
    found = []
    if run.status == "failed":
        says = f"{run.error or 'no reason was noted'}; mend it, then: {command(f'resume {run_id}', store.url)}"
        found.append(Diagnosis("end", "act", says, {}))
    if restarts:
        says = f"{len(restarts)} in this attempt, the last one because {restarts[-1].message}"
        found.append(Diagnosis("restarts", "look", says, {"restarts": float(len(restarts))}))
    return found


def _numbers(store: Store, run_id: str) -> list[Diagnosis]:
    config = runs.get_run(store, run_id).config
    # A plain script's settings have no sections, and only those that decide what is learnt.
    given = TrainerSettings().arguments() | config.get("trainer", config)
    told = Told(
        max_staleness=int(given["max_staleness"]),
        num_generations=int(given["num_generations"]),
        max_concurrent_rollouts=int(given["max_concurrent_rollouts"]),
        reward_range=conversations.reward_range(store, run_id),
    )
    found = diagnose([values for _, values in metrics.series(store, run_id)], told)
    look = command(f"rollouts {run_id}", store.url)
    return [dataclasses.replace(one, says=one.says.replace("agrpo rollouts RUN", look)) for one in found]
