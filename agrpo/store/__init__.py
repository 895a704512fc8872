"""The SQL store: what every process of a run agrees on. Importing it loads neither torch nor alembic."""

from agrpo.store.attempt import Attempt
from agrpo.store.store import Store

__all__ = ["Attempt", "Store"]
