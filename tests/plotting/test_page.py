"""The page escapes what it did not write."""

from agrpo.plotting.history import History, Mark
from agrpo.plotting.page import page


def test_names_and_reasons_are_text_not_html() -> None:
    text = page([History("a", "failed", [(1, {"<b>": 1.0})], [Mark(1, "<script>alert(1)</script>")])])
    assert "<script>" not in text
    assert "&lt;b&gt;" in text


def test_a_run_without_steps_has_a_page_too() -> None:
    assert "<svg" in page([History("empty", "created", [], [])])


def test_a_name_shows_its_last_value_also_when_a_later_step_lacks_it() -> None:
    text = page([History("a", "failed", [(1, {"reward": 0.125}), (2, {"evaluation/reward": 0.75})], [])])
    assert '<td>reward</td><td class="number">0.125</td>' in text
    assert '<td>evaluation/reward</td><td class="number">0.75</td>' in text
