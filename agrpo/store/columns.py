"""How a column of the store is written: never NULL unless said so, and always with a comment."""

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Integer, MetaData, Text

Id = BigInteger().with_variant(Integer, "sqlite")
metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def column(name: str, type_: Any, comment: str, nullable: bool = False, references: str | None = None) -> Column[Any]:
    """A column that is no key, perhaps one that names another table's row."""
    foreign = [ForeignKey(references)] if references else []
    return Column(name, type_, *foreign, comment=comment, nullable=nullable)


def id_column(comment: str) -> Column[Any]:
    """A number that the database gives out."""
    return Column("id", Id, primary_key=True, comment=comment)


def run_column(primary_key: bool = False) -> Column[Any]:
    """The run that a row belongs to."""
    return Column(
        "run_id", Text, ForeignKey("runs.run_id"), primary_key=primary_key, nullable=False, comment="The run."
    )


def one_of(name: str, *words: str) -> CheckConstraint:
    """Refuses any other word in the column."""
    return CheckConstraint(f"{name} IN ({', '.join(repr(word) for word in words)})", name=name)
