"""The store, as the doctor finds it."""

from pathlib import Path

import pytest

from agrpo.doctor.places import check_store, hide_password
from agrpo.store import Store
from tests.worlds.small_groups import start_run


def test_a_store_is_counted_or_promised(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agrpo.db"
    assert "will be made" in check_store(url).says
    (tmp_path / "agrpo.db").touch()
    assert check_store(url).level == "warning"  # no schema yet
    store = Store.open(url)
    store.migrate()
    start_run(store)
    assert "holds 1 runs" in check_store(url).says


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db/agrpo", "postgresql://me@db/agrpo"),
        ("sqlite:///runs/agrpo.db", "sqlite:///runs/agrpo.db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert hide_password(url) == shown
