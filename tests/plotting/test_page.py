"""The page escapes what it did not write."""

from agrpo.plotting.history import History, Mark
from agrpo.plotting.page import page


def test_names_and_reasons_are_text_not_html() -> None:
    text = page([History("a", "failed", [(1, {"<b>": 1.0})], [Mark(1, "<script>alert(1)</script>")])])
    assert "<script>" not in text
    assert "&lt;b&gt;" in text


def test_a_run_without_steps_has_a_page_too() -> None:
    assert "<svg" in page([History("empty", "created", [], [])])
