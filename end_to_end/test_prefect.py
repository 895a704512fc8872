"""With a real Prefect server and worker: deploy, launch, crash, cancel, go on, pause, evaluate, lose power."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agrpo.store import checkpoints, evaluations, events, processes, runs, workers
from agrpo.store.verify import verify
from end_to_end.prefect_world import PYTHON, ROOT, PrefectWorld
from tests.worlds.kill_run import ROWS

FOREVER = 100_000


def deployment(world: PrefectWorld, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.api("GET", f"/deployments/name/{name}")
    return found


def test_deploying_makes_pool_deployments_and_a_paused_schedule(world: PrefectWorld) -> None:
    said = world.say("flows", "deploy")
    assert "made work pool agrpo-process" in said
    train = deployment(world, "agrpo-train/train")
    assert (train["entrypoint"], train["tags"]) == ("flows.train.train", ["agrpo"])
    form = train["parameter_openapi_schema"]
    assert form["definitions"]["TrainerSettings"]["title"] == "Trainer"
    assert "How the policy is trained." in form["definitions"]["TrainerSettings"]["description"]


def schedule(world: PrefectWorld) -> dict[str, Any]:
    [found] = deployment(world, "agrpo-nightly/nightly")["schedules"]
    return dict(found)


def test_a_schedule_ships_paused_and_stays_as_a_person_left_it(world: PrefectWorld, tmp_path: Path) -> None:
    assert (schedule(world)["active"], schedule(world)["schedule"]["cron"]) == (False, "0 3 * * *")
    switch_schedule(world, True)
    assert "schedule nightly stays active" in world.say("flows", "deploy")
    assert schedule(world)["active"] is True
    switch_schedule(world, False)
    own = (ROOT / "prefect.yaml").read_text().replace("active: false", "active: true").replace("[agrpo]", "[mine]")
    (tmp_path / "prefect.yaml").write_text(own)
    assert "schedule nightly stays paused" in world.say("flows", "deploy", folder=tmp_path)
    assert schedule(world)["active"] is False


def test_a_schedule_made_by_hand_survives_a_deploy(world: PrefectWorld) -> None:
    path = f"/deployments/{deployment(world, 'agrpo-nightly/nightly')['id']}/schedules"
    by_hand = {"active": True, "schedule": {"cron": "0 9 * * *", "timezone": "UTC"}}
    world.api("POST", path, [by_hand])
    assert "is put back" in world.say("flows", "deploy")
    found = {one["schedule"]["cron"]: one for one in deployment(world, "agrpo-nightly/nightly")["schedules"]}
    assert {cron: one["active"] for cron, one in found.items()} == {"0 3 * * *": False, "0 9 * * *": True}
    world.api("DELETE", f"{path}/{found['0 9 * * *']['id']}")


def switch_schedule(world: PrefectWorld, wish: bool) -> None:
    path = f"/deployments/{deployment(world, 'agrpo-nightly/nightly')['id']}/schedules/{schedule(world)['id']}"
    world.api("PATCH", path, {"active": wish})


def test_plain_prefect_deploy_makes_every_deployment_too(world: PrefectWorld) -> None:
    switch_schedule(world, True)
    world.say("prefect", "--no-prompt", "deploy", "--all")
    made = {one["name"]: one["work_pool_name"] for one in world.api("POST", "/deployments/filter", {})}
    assert made == dict.fromkeys(("train", "evaluate", "nightly"), "agrpo-process")
    assert schedule(world)["active"] is False


def test_automations_are_made_once_and_then_updated(world: PrefectWorld) -> None:
    assert "created agrpo-resume-crashed" in world.say("flows", "automations")
    assert "updated agrpo-resume-crashed" in world.say("flows", "automations", "--silent-s", "90")
    names = [one["name"] for one in world.api("POST", "/automations/filter", {})]
    assert sorted(names) == ["agrpo-resume-crashed", "agrpo-resume-silent"]


def test_a_wrong_value_is_refused_before_a_run_is_made(world: PrefectWorld) -> None:
    said = world.run_deployment("wrong", check=False, num_generations=1)
    assert "'config.trainer.num_generations'. Failure reason: 1 is less than the minimum of 2" in " ".join(said.split())
    assert world.api("POST", "/flow_runs/filter", {"flow_runs": {"tags": {"all_": ["agrpo"]}}}) == []


def test_a_killed_flow_is_crashed_and_goes_on_by_itself(world: PrefectWorld) -> None:
    world.start_worker()
    flow = world.run_deployment("crash", max_steps=20)
    world.wait("four steps", lambda: world.step("crash") >= 4)
    world.kill_flow("crash")
    world.wait("the second attempt", lambda: world.token("crash") == 2)
    states = [one["name"] for one in world.api("GET", f"/flow_run_states/?flow_run_id={flow}")]
    assert "Crashed" in states
    world.wait("the end", lambda: world.state(flow) == "Completed")
    found = runs.get_run(world.store, "crash")
    assert (found.status, found.step) == ("finished", 20)
    assert verify(world.store, "crash").problems == []
    evaluated = evaluations.of_run(world.store, "crash")
    assert [one.values["num_prompts"] for one in evaluated if one.values is not None][:1] == [4]
    assert world.alive("crash") == []


def test_a_run_is_named_tagged_and_shown(world: PrefectWorld) -> None:
    [run] = world.api("POST", "/flow_runs/filter", {"flow_runs": {"tags": {"all_": ["agrpo", "run:crash"]}}})
    assert run["name"] == "crash, attempt 2"
    shown = world.api("POST", "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    by_key = {one["key"]: one["data"] for one in shown}
    assert {"crash-progress", "crash-run", "crash-plot"} <= set(by_key)
    assert "data:image/png;base64," in by_key["crash-run"]
    assert "attempt 1 died (process " in by_key["crash-run"]
    assert by_key["crash-run"].startswith("# crash: finished\n\nstep 20 of 20")


def cancel(world: PrefectWorld, flow: str) -> None:
    """Cancel as a person would; nothing may be alive 15 s after they pressed Enter, and a checkpoint must be there."""
    pressed_at = time.monotonic()
    world.say("prefect", "flow-run", "cancel", flow)
    world.wait("nothing of it lives", lambda: world.alive("long") == [], limit_s=15)
    took_s = time.monotonic() - pressed_at
    print(f"cancelled in {took_s:.1f} s")
    assert took_s < 15
    world.wait("Cancelled", lambda: world.state(flow) == "Cancelled", limit_s=60)
    cursor = checkpoints.cursor(world.store, "long")
    assert cursor is not None
    assert cursor.step == world.step("long")
    assert runs.get_run(world.store, "long").status == "stopped"


def test_a_cancelled_run_is_gone_within_15_seconds_with_a_checkpoint(world: PrefectWorld) -> None:
    flow = world.run_deployment("long", max_steps=FOREVER)
    world.wait("three steps", lambda: world.step("long") >= 3)
    cancel(world, flow)


def retry_by_command(world: PrefectWorld, flow: str) -> str:
    world.say("prefect", "flow-run", "retry", flow)
    return flow


def retry_in_the_interface(world: PrefectWorld, flow: str) -> str:
    state = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
    world.api("POST", f"/flow_runs/{flow}/set_state", {"state": state, "force": True})  # what its button sends
    return flow


def run_the_deployment_again(world: PrefectWorld, flow: str) -> str:
    return world.run_deployment("long", max_steps=FOREVER)


@pytest.mark.parametrize("go_on", [retry_by_command, retry_in_the_interface, run_the_deployment_again])
def test_a_cancelled_run_goes_on_where_it_was(world: PrefectWorld, go_on: Callable[[PrefectWorld, str], str]) -> None:
    before, attempts = world.step("long"), world.token("long")
    flow = go_on(world, world.last_flow("long"))
    world.wait("it goes on", lambda: world.step("long") >= before + 2)
    assert world.token("long") == attempts + 1
    cancel(world, flow)


def test_agrpo_resume_goes_on_with_it_too(world: PrefectWorld) -> None:
    before = world.step("long")
    resumed = world.start("flows", "resume", "long")
    world.wait("it goes on", lambda: world.step("long") >= before + 2)
    resumed.send_signal(signal.SIGINT)
    assert resumed.wait(60) == 130
    assert world.alive("long") == []


def trainer_beat(world: PrefectWorld) -> processes.Heartbeat:
    return next(beat for beat in processes.heartbeats(world.store, "long") if beat.kind == "trainer")


def is_drained(world: PrefectWorld) -> bool:
    """Nothing is in flight, nothing is let in, and the trainer has used up what there was."""
    said = workers.states(world.store, "long")
    idle = all(not word.in_flight and not word.admission_open for word in said)
    return bool(said) and idle and str(trainer_beat(world).detail).startswith("waiting for samples")


def test_a_paused_run_drains_and_goes_on_when_it_is_resumed(world: PrefectWorld) -> None:
    before = world.step("long")
    flow = world.run_deployment("long", max_steps=FOREVER)
    world.wait("it goes on", lambda: world.step("long") >= before + 2)
    world.api("POST", f"/flow_runs/{flow}/set_state", {"state": {"type": "PAUSED", "name": "Suspended"}})
    world.wait("it drains", lambda: runs.get_run(world.store, "long").request == "drain")
    world.wait("it is drained", lambda: is_drained(world))
    claimed = runs.get_run(world.store, "long").next_prompt_index
    for _ in range(2):
        spoke_at = trainer_beat(world).at
        world.wait("the trainer speaks again", lambda before=spoke_at: trainer_beat(world).at > before)
    assert runs.get_run(world.store, "long").next_prompt_index == claimed
    paused = world.alive("long")
    assert len(paused) == 3  # trainer, worker, evaluator
    world.api("POST", f"/flow_runs/{flow}/resume", {})
    world.wait("it is resumed", lambda: runs.get_run(world.store, "long").request == "none")
    now = world.step("long")
    world.wait("steps go on", lambda: world.step("long") >= now + 3)
    assert world.alive("long") == paused
    assert [one.message for one in events.events(world.store, "long") if one.message.startswith("paused")]
    world.say("prefect", "flow-run", "cancel", flow)
    world.wait("nothing of it lives", lambda: world.alive("long") == [], limit_s=15)


def test_a_checkpoint_is_evaluated_by_its_deployment(world: PrefectWorld) -> None:
    known = len(evaluations.of_run(world.store, "crash"))
    flow = world.run_named("agrpo-evaluate/evaluate", run="crash", url=world.tokens_url)
    world.wait("it is evaluated", lambda: world.state(flow) == "Completed")
    found = evaluations.of_run(world.store, "crash")
    assert len(found) == known + 1
    shown = world.api("POST", "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow]}}})
    assert ["pass@1" in one["data"] for one in shown] == [True]


def night(world: PrefectWorld, name: str, max_steps: int) -> dict[str, Any]:
    """A lineage whose weights are evaluated by servers of made-up tokens: whoever starts vLLM gets those."""
    python = world.folder / "tokens-python"
    loop = 'while [ "$1" != --port ]; do shift; done'
    python.write_text(f'#!/bin/sh\n{loop}\nexec {PYTHON} -m tests.worlds.token_server "$2"\n')
    python.chmod(0o755)
    return world.config(name, max_steps=max_steps) | {"servers": {"urls": [world.tokens_url], "python": str(python)}}


def test_a_night_is_trained_and_decided_once_whatever_is_killed_or_retried(world: PrefectWorld) -> None:
    flow = world.run_named("agrpo-nightly/nightly", config=night(world, "night", 12))
    world.wait("two steps", lambda: world.step("night-1") >= 2)
    world.kill_flow("night-1")
    world.wait("the second attempt", lambda: world.token("night-1") == 2)
    world.wait("the decision", lambda: world.state(flow) == "Completed")
    [decision] = evaluations.promotions(world.store, "night")
    assert (decision.run_id, decision.numbers["num_prompts"], world.last_flow("night-1")) == ("night-1", 4, flow)
    begun = world.api("GET", f"/flow_runs/{flow}")["run_count"]
    world.say("prefect", "flow-run", "retry", flow)
    world.wait("it is begun again", lambda: world.api("GET", f"/flow_runs/{flow}")["run_count"] > begun)
    world.wait("the same decision", lambda: world.state(flow) == "Completed")
    assert world.api("GET", f"/flow_runs/{flow}")["state"]["message"] == decision.reason
    assert [run.run_id for run in runs.list_runs(world.store) if run.run_id.startswith("night")] == ["night-1"]
    assert evaluations.promotions(world.store, "night") == [decision]
    assert verify(world.store, "night-1").problems == []


def test_who_pauses_or_cancels_a_night_pauses_or_cancels_its_run(world: PrefectWorld) -> None:
    flow = world.run_named("agrpo-nightly/nightly", config=night(world, "owl", FOREVER))
    world.wait("two steps", lambda: world.step("owl-1") >= 2)
    world.api("POST", f"/flow_runs/{flow}/set_state", {"state": {"type": "PAUSED", "name": "Suspended"}})
    world.wait("it drains", lambda: runs.get_run(world.store, "owl-1").request == "drain")
    world.api("POST", f"/flow_runs/{flow}/resume", {})
    world.wait("it is resumed", lambda: runs.get_run(world.store, "owl-1").request == "none")
    world.say("prefect", "flow-run", "cancel", flow)
    world.wait("nothing of it lives", lambda: world.alive("owl-1") == [], limit_s=15)
    world.wait("Cancelled", lambda: world.state(flow) == "Cancelled", limit_s=60)
    assert (runs.get_run(world.store, "owl-1").status, evaluations.promotions(world.store, "owl")) == ("stopped", [])


def test_a_secret_is_there_before_the_users_code_is_imported(world: PrefectWorld) -> None:
    world.keep_secret("e2e-secret", "open")
    guarded = world.folder / "guarded_rows.py"
    guarded.write_text(f"import os\n\nassert os.environ['E2E_SECRET'] == 'open'\n{ROWS.replace('NUM_ROWS', '8')}")
    rows, reward = f"{guarded}:rows", f"{guarded}:remainder"
    config = world.config("guarded", max_steps=2) | {"data": {"rows": rows}, "rewards": [reward]}
    config |= {"evaluation": {"num_samples": 2}, "secrets": {"E2E_SECRET": "e2e-secret"}}
    flow = world.run_named("agrpo-train/train", config=config)
    world.wait("it is trained", lambda: world.state(flow) == "Completed")
    assert "pass@1" in world.say("flows", "evaluate", "guarded", "--url", world.tokens_url)
    flow = world.run_named("agrpo-evaluate/evaluate", run="guarded", step=0, url=world.tokens_url)
    world.wait("it is evaluated", lambda: world.state(flow) == "Completed")


def test_a_run_outlives_flow_worker_and_server(world: PrefectWorld) -> None:
    flow = world.run_deployment("reboot", max_steps=60)
    world.wait("four steps", lambda: world.step("reboot") >= 4)
    before = world.step("reboot")
    world.lose_power("reboot")
    world.boot()
    waited = world.wait("the second attempt", lambda: world.token("reboot") == 2, limit_s=240)
    print(f"begun again {waited:.0f} s after the machine was back")
    world.wait("the end", lambda: world.state(flow) == "Completed")
    assert before < runs.get_run(world.store, "reboot").step == 60
    assert verify(world.store, "reboot").problems == []
