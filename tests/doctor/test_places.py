"""The store, as the doctor finds it."""

from pathlib import Path

import pytest

from agrpo.doctor.places import check_store, hide_password
from agrpo.store import Store, sqlite
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


def test_a_store_that_no_run_could_use_is_a_problem_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "must be a file" in check_store("sqlite:///:memory:").says
    monkeypatch.setattr(sqlite, "network_file_system", lambda path, mounts: "nfs4")
    found = check_store(f"sqlite:///{tmp_path}/agrpo.db")
    assert (found.level, "lies on nfs4" in found.says) == ("problem", True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db/agrpo", "postgresql://me@db/agrpo"),
        ("sqlite:///runs/agrpo.db", "sqlite:///runs/agrpo.db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert hide_password(url) == shown
