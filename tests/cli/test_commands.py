"""The commands that only read: what they print, and that they load nothing heavy."""

import json
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.cli.runs import print_runs
from agrpo.cli.show import print_run
from agrpo.errors import AgrpoError, BadInput
from agrpo.store import Store, evaluations, events, leases, metrics, runs, samples, steps
from tests.worlds.small_groups import generate, start_worker

CONFIG = {"trainer": {"max_steps": 10}}
NUM_STEPS, NUM_RUNS = 10, 1000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one run of ten steps, each of a group, whose reward climbs from 0.1 to 1.0."""
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    runs.create_run(store, "climb", CONFIG, "hash", str(tmp_path / "climb"))
    attempt = leases.acquire(store, "climb", leases.this_process())
    runs.set_status(attempt, "running")
    events.add(attempt, "restart", "worker 0 was ended by signal 9; restart 1 of 3 in 1 s")
    generate(attempt, start_worker(attempt), NUM_STEPS)
    ready = samples.pending(store, "climb")
    for step in range(1, NUM_STEPS + 1):
        metrics.log(attempt, step, {"reward": step / 10})
        both = enumerate(ready[2 * step - 2 : 2 * step])
        steps.record(attempt, step, [steps.StepRow(0, 0, place, one.sample_id) for place, one in both], 0)
        steps.finish(attempt, step, "digest", {})
    runs.set_status(attempt, "finished")
    leases.release(attempt, "finished")
    return store


def test_show_prints_the_outcome(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    print_run(store.url, "climb", as_json=False)
    printed = capsys.readouterr().out
    assert "climb (finished)" in printed
    assert "0.15 -> 0.95" in printed
    assert "worker 0 was ended by signal 9" in printed


def test_show_tells_of_evaluations(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    number = evaluations.begin(store, "climb", 10, "weights", "tasks")
    reward = {"value": 0.62, "low": 0.55, "high": 0.69}
    evaluations.finish(store, number, {"num_prompts": 64, "reward": reward})
    print_run(store.url, "climb", as_json=False)
    assert "evaluation: step 10, 64 prompts: reward 0.6200 (0.5500 to 0.6900)" in capsys.readouterr().out
    print_run(store.url, "climb", as_json=True)
    [shown] = json.loads(capsys.readouterr().out)["evaluations"]
    assert (shown["step"], shown["values"]["reward"]) == (10, reward)


def test_show_as_json_holds_what_scripts_read(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    print_run(store.url, "climb", as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert {"status", "step", "reward_first_fifth", "reward_last_fifth", "wall_s", "checkpoint"} <= set(shown)
    assert shown["status"] == "finished"
    assert shown["reward_first_fifth"] == pytest.approx(0.15)


def test_runs_lists_every_run(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    print_runs(store.url, as_json=True)
    assert [run["run"] for run in json.loads(capsys.readouterr().out)] == ["climb"]
    print_runs(store.url, as_json=False)
    assert "finished" in capsys.readouterr().out


def test_an_unknown_run_and_a_missing_store_are_one_line(store: Store, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"there is no run 'other' in .*: `agrpo runs --store {store.url}` lists"):
        print_run(store.url, "other", as_json=False)
    with pytest.raises(AgrpoError, match="there is no database"):
        print_runs(f"sqlite:///{tmp_path}/nowhere.db", as_json=False)


def test_reading_commands_load_nothing_heavy(store: Store) -> None:
    program = (
        "import sys; sys.argv = ['agrpo', 'show', 'climb', '--json', '--store', sys.argv[1]]\n"
        "from flows.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'prefect', 'vllm', 'datasets', 'numpy', 'alembic', 'pydantic'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program, store.url], check=True, capture_output=True, text=True)


def multiply(path: str, table: str) -> None:
    """Give a thousand more runs the rows that `climb` has in a table."""
    with sqlite3.connect(path) as database:
        columns = [f'"{row[1]}"' for row in database.execute(f"PRAGMA table_info({table})")]
        others = ", ".join(name for name in columns if name not in ('"id"', '"run_id"'))
        # The groups before were numbered in order.
        values = others.replace('"group_id"', f'"group_id" + {NUM_STEPS} * (?1 + 1)')
        copies = f"INSERT INTO {table} (run_id, {others}) SELECT run_id || '-' || ?1, {values} FROM {table}"
        database.executemany(f"{copies} WHERE run_id = 'climb'", [(number,) for number in range(NUM_RUNS)])
    database.close()


def test_show_takes_less_than_a_second_beside_a_thousand_runs(store: Store) -> None:
    for table in ("runs", "attempts", "metrics", "run_events", "processes", "groups", "samples", "steps"):
        multiply(store.url.removeprefix("sqlite:///"), table)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [Path(sys.executable).parent / "agrpo", "show", "climb-500", "--store", store.url, "--json"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Its own work, as others may use the cores just now.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    assert (shown["step"], shown["groups"], shown["samples"]) == (NUM_STEPS, {"trained": 10}, {"trained": 20})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shwo", "x"], 'Did you mean "show"?'),
        (["show"], "requires an argument"),
        (["train", "missing.yaml"], "agrpo: missing.yaml: cannot be read"),
        (["train", "/bin/sh"], "agrpo: /bin/sh: not text"),
        (["rollouts", "x", "--limit", "0"], "Must be >= 1"),
        (["ui", "--port", "99999"], "Must be <= 65535"),
        (["automations", "--silent-s", "89"], "Must be >= 90"),
        (["runs", "--store", "nonsense"], "is no database URL"),
    ],
)
def test_a_mistyped_command_exits_with_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    program = "import sys; sys.argv[0] = 'agrpo'; from flows.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ended.returncode == 2
    assert said in ended.stdout + ended.stderr
