"""SQLite, set up in one place: write-ahead log, immediate writers, full sync, and no network file system."""

import errno
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

from agrpo.errors import StoreError

BUSY_TIMEOUT_S = 30
PRAGMAS = (
    f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
)
NETWORK_FILE_SYSTEMS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "ocfs2", "gfs2"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs", "fuse.rclone", "fuse.ceph"),
}


def open_engine(url: URL, create: bool, json_serializer: Callable[[Any], str]) -> Engine:
    """An engine on the file that `url` names; makes its folder when `create` is set."""
    path = _file(url)
    if not create and not path.exists():
        raise StoreError(f"there is no database {path}: start a run, or name another store with AGRPO_DATABASE_URL")
    _refuse_network(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    engine = create_engine(url.set(database=str(path)), json_serializer=json_serializer)
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    return engine


def check_place(url: URL) -> None:
    """Raise StoreError where a SQLite file could not be kept; makes nothing."""
    path = _file(url)
    _refuse_network(path)
    try:
        # Never opened here: closing it would end the locks of every connection that this process has, and SQLite would
        # delete the write-ahead log under them.
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with tempfile.TemporaryFile(dir=next(parent for parent in path.parents if parent.exists())):
            return
    except OSError as error:
        raise _unwritable(path, error) from None


def _file(url: URL) -> Path:
    if not url.database or url.database == ":memory:":
        raise StoreError("the store must be a file that several processes can open: write sqlite:///runs/agrpo.db")
    return Path(os.path.realpath(url.database))


def _refuse_network(path: Path) -> None:
    kind = network_file_system(path, Path("/proc/mounts").read_text())
    if kind:
        raise StoreError(f"{path} lies on {kind}, where SQLite's locks do not hold: use a local disk or PostgreSQL")


def _unwritable(path: Path, error: OSError) -> StoreError:
    reason = error.strerror or str(error)
    return StoreError(f"store {path} cannot be written ({reason}): name another place in store.url")


def network_file_system(path: Path, mounts: str) -> str | None:
    """The type of the network file system that holds `path`, None on a local one; `mounts` as in /proc/mounts."""
    holder = ("", "")
    for line in mounts.splitlines():
        _, point, kind = line.split()[:3]
        point = point.replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= len(holder[0]):
            holder = (point, kind)
    return holder[1] if holder[1] in NETWORK_FILE_SYSTEMS else None


def _set_up(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver would begin too late and never IMMEDIATE
    for pragma in PRAGMAS:
        connection.execute(pragma)
    _use_write_ahead_log(connection)


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Of several connections that make this change to a new file at once, SQLite refuses some without waiting."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("agrpo_begin", "BEGIN"))
