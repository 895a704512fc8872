"""The SQL store: what every process of a run agrees on. Importing it loads neither torch nor alembic."""

from agrpo.store.attempt import Attempt, Membership
from agrpo.store.store import DEFAULT_URL, Store, command

__all__ = ["DEFAULT_URL", "Attempt", "Membership", "Store", "command"]
