"""docs/schema.md from the tables: `python -m agrpo.store.schema_doc > docs/schema.md`."""

from typing import Any

from sqlalchemy import Column, Table, UniqueConstraint

from agrpo.store.columns import metadata
from agrpo.store.schema import runs

INTRODUCTION = """# The schema of the store

Made from the tables of `agrpo/store` by `python -m agrpo.store.schema_doc > docs/schema.md`; a test keeps it current.
SQLite and PostgreSQL have the same tables. Times are seconds since 1970 (UTC), arrays are bytes of `agrpo/codec.py`.
Read it with any client; write only through `agrpo.store`, which checks `runs.token` in every transaction.
"""


def document() -> str:
    """The whole page, parents before children."""
    tables = sorted(metadata.sorted_tables, key=lambda table: table is not runs)
    return "\n".join([INTRODUCTION, *(_section(table) for table in tables)])


def _section(table: Table) -> str:
    lines = [f"## {table.name}", "", "| column | type | what it says |", "|---|---|---|"]
    lines += [f"| `{column.name}` | {_type(column)} | {column.comment} |" for column in table.columns]
    unique = [_names(one) for one in table.constraints if isinstance(one, UniqueConstraint)]
    lines += ["", f"Primary key: {_names(table.primary_key)}." + "".join(f" Unique: {names}." for names in unique), ""]
    return "\n".join(lines)


def _type(column: Column[Any]) -> str:
    words = [str(column.type)] + ["or NULL"] * bool(column.nullable)
    words += [f"-> `{key.target_fullname}`" for key in sorted(column.foreign_keys, key=lambda key: key.target_fullname)]
    return " ".join(words)


def _names(constraint: Any) -> str:
    return ", ".join(f"`{column.name}`" for column in constraint.columns)


if __name__ == "__main__":
    print(document(), end="")
