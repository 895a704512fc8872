"""Bring a database to the newest schema, once, whoever asks at the same time."""

from importlib import resources

from alembic import command
from alembic.config import Config
from sqlalchemy import text

from agrpo.store.store import Store

_ADVISORY_LOCK = 0x6167_7270_6F  # "agrpo": any number that no other program locks


def upgrade(store: Store) -> None:
    """Run the missing revisions of the `migrations` package in one transaction that excludes every other caller."""
    with store.write_unchecked() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        config = Config()
        config.set_main_option("script_location", str(resources.files("migrations")))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
