"""What is said of a run file: also of its data."""

from pathlib import Path

import pytest

from agrpo.doctor.examination import examine
from agrpo.runfile import parse

ROWS = 'def rows():\n    return [{"prompt": "1 + 1"}]\n\n\ndef reward(completions, **columns):\n    return [0.0]\n'


def test_a_run_file_with_bad_data_could_not_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "examined.py").write_text(ROWS)
    (tmp_path / "config.json").write_text("{}")
    given = {"name": "x", "model": {"path": str(tmp_path)}, "servers": {"urls": ["http://127.0.0.1:1"]}}
    named = {"data": {"rows": f"{tmp_path}/examined.py:rows"}, "rewards": [f"{tmp_path}/examined.py:reward"]}
    url = f"sqlite:///{tmp_path}/agrpo.db"
    found = list(examine(parse({**given, **named, "store": {"url": url}}, "test"), url))[-1]
    assert (found.about, found.level) == ("run file", "problem")
    assert "expected a conversation" in found.says
