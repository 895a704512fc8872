"""`agrpo plot RUN [RUN...]`: a picture and a page of one run, or of several to compare."""

from collections.abc import Sequence
from pathlib import Path

from agrpo.cli.stores import opened
from agrpo.errors import BadInput
from agrpo.plotting.drawing import draw
from agrpo.plotting.history import read_history
from agrpo.plotting.page import page
from agrpo.store import runs


def plot_runs(store_url: str | None, run_ids: Sequence[str], folder: Path | None) -> tuple[Path, Path]:
    """Write plot.png and plot.html into `folder`, by default the first run's; where they are."""
    with opened(store_url) as store:
        histories = [read_history(store, run_id) for run_id in run_ids]
        folder = folder or Path(runs.get_run(store, run_ids[0]).run_dir)
    name = "plot" if len(run_ids) == 1 else f"plot-{'-'.join(run_ids)}"
    picture, document = folder / f"{name}.png", folder / f"{name}.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(draw(histories, "png"))
        document.write_text(page(histories))
    except OSError as error:
        raise BadInput(f"{folder} cannot be written ({error.strerror}): name another folder with --output") from None
    return picture, document
