"""What a person asks of Prefect reaches the attempt that they asked, and no other."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import StateType

from agrpo.store import Store, leases, runs
from tasks.reporter import _Reporter
from tests.worlds.small_groups import DEAD, start_run


@pytest.mark.parametrize(("is_owner", "asked"), [(True, "stop"), (False, "none")])
def test_a_cancelled_flow_stops_its_own_attempt_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_owner: bool, asked: str
) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    session: Any = SimpleNamespace(attempt=start_run(store), run=SimpleNamespace(name="small"))
    reporter = _Reporter(session, uuid4())
    monkeypatch.setattr(reporter, "_states", lambda: {StateType.CANCELLED})
    if not is_owner:
        leases.acquire(store, "small", DEAD)
    reporter._obey()
    assert runs.get_run(store, "small").request == asked
    store.close()
