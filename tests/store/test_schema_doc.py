from pathlib import Path

from agrpo.store.schema import metadata
from agrpo.store.schema_doc import document

PAGE = Path(__file__).parents[2] / "docs" / "schema.md"


def test_the_page_is_current():
    assert PAGE.read_text() == document(), "run: python -m agrpo.store.schema_doc > docs/schema.md"


def test_every_column_says_what_it_is():
    silent = [str(column) for table in metadata.tables.values() for column in table.columns if not column.comment]
    assert silent == []
