"""What the documents say is there: commands, targets, links, examples, and pages made from code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agrpo import runfile
from agrpo.cli import run_file_doc
from agrpo.evaluation.tasks import held_out_rows

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN_FILES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    from flows.cli import app

    text = page.read_text()
    commands = set(re.findall(r"(?:`|^ {4})agrpo ([a-z-]+)", text, re.MULTILINE))
    assert commands <= set(app)
    targets = set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.MULTILINE))
    assert targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_tests_that_pages_name_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", "".join(page.read_text() for page in PAGES)))
    assert len(named) > 26
    assert [name for path, name in sorted(named) if f"def {name}(" not in (ROOT / path).read_text()] == []


def test_every_command_has_an_example_and_a_place_in_the_documents() -> None:
    from flows.cli import app

    operations = (ROOT / "docs" / "operations.md").read_text()
    for name in app:
        if not name.startswith("-"):
            assert f"Example: agrpo {name}" in str(app[name].help)
            assert f"agrpo {name}" in operations


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.name)
def test_examples_are_fine(path: Path) -> None:
    program = "import sys; sys.argv = ['agrpo', 'train', sys.argv[1], '--dry-run']; from flows.cli import main; main()"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, cwd=ROOT, capture_output=True, text=True)


def test_deployments_hold_run_files_and_their_schedules_ship_paused() -> None:
    import yaml

    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    configs = [one["parameters"]["config"] for one in deployments if "config" in one["parameters"]]
    runs = [runfile.parse(config, "prefect.yaml") for config in configs]
    assert [run.name for run in runs] == ["first", "nightly"]
    quickstart = runfile.load(ROOT / "examples" / "quickstart.yaml")
    assert all(run.model_copy(update={"name": quickstart.name}) == quickstart for run in runs)
    assert [schedule["active"] for one in deployments for schedule in one.get("schedules", [])] == [False]


def test_no_held_out_question_of_the_quickstart_is_asked_in_training() -> None:
    run = runfile.load(ROOT / "examples" / "quickstart.yaml")
    asked, held_out = (
        {frozenset(re.findall(r"\d+", row["prompt"][0]["content"])) for row in rows}
        for rows in (runfile.load_dataset(run), held_out_rows(run))
    )
    assert len(asked) > 400 and len(held_out) > 100
    assert not asked & held_out


def documented_metrics() -> "re.Pattern[str]":
    """Every name in docs/metrics.md; {a,b} stands for either, {name} for anything."""
    rows = [line.split("|")[1] for line in (ROOT / "docs" / "metrics.md").read_text().splitlines() if "|" in line]
    names = re.findall(r"`([\w/{},]+)`", " ".join(rows))
    patterns = [re.sub(r"\{(\w+(?:,\w+)+)\}", lambda one: f"({one[1].replace(',', '|')})", name) for name in names]
    return re.compile("|".join(re.sub(r"\{\w+\}", ".+", pattern) for pattern in patterns))


def test_every_metric_in_the_code_is_described() -> None:
    places = [*(ROOT / "agrpo" / "rollout").rglob("*.py"), *(ROOT / "agrpo" / "trainer").rglob("*.py")]
    group = "batch|clip_ratio|completions|env|perf|rewards|rollout|sample|sampling|tools"
    found = {name for place in places for name in re.findall(rf'"((?:{group})/[\w/{{}}]+)"', place.read_text())}
    spelled_out = found - {"perf/{name}", "perf/weight_sync_{phase}_s"}
    names = [re.sub(r"\{\w*\}", "mean", name) for name in spelled_out]
    assert len(names) > 60
    assert [name for name in sorted(names) if not documented_metrics().fullmatch(name)] == []


def test_the_page_on_run_files_is_current() -> None:
    assert (ROOT / "docs" / "run-file.md").read_text() == run_file_doc.document()
