"""One HTML page that needs nothing else: the picture, the last numbers, the restarts with their reasons."""

from collections.abc import Sequence
from html import escape

from agrpo.plotting.drawing import draw
from agrpo.plotting.history import History

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222; }
svg { width: 100%; height: auto; } table { border-collapse: collapse; } caption { text-align: left; font-weight: bold; }
td, th { border-bottom: 1px solid #ddd; padding: .2rem .8rem .2rem 0; text-align: left; font-weight: normal; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
"""


def page(histories: Sequence[History]) -> str:
    """The page of one run or of several."""
    title = escape(", ".join(history.run_id for history in histories))
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    parts = [f"{head}<style>{_STYLE}</style></head><body><h1>{title}</h1>", _svg(histories)]
    parts += [_restarts(history) for history in histories if history.marks]
    return "\n".join([*parts, _last_values(histories), "</body></html>\n"])


def _svg(histories: Sequence[History]) -> str:
    drawn = draw(histories, "svg").decode()
    return drawn[drawn.index("<svg") :]


def _restarts(history: History) -> str:
    rows = "".join(f"<tr><td>step {mark.step}</td><td>{escape(mark.says)}</td></tr>" for mark in history.marks)
    return f"<table><caption>{escape(history.run_id)}: begun again</caption>{rows}</table>"


def _last_values(histories: Sequence[History]) -> str:
    last = [_newest(history) for history in histories]
    names = sorted({name for values in last for name in values})
    heads = "".join(f"<th>{escape(history.run_id)} ({escape(history.status)})</th>" for history in histories)
    rows = []
    for name in names:
        cells = "".join(f'<td class="number">{values.get(name, float("nan")):.5g}</td>' for values in last)
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    return f"<table><caption>Last values</caption><tr><th></th>{heads}</tr>{''.join(rows)}</table>"


def _newest(history: History) -> dict[str, float]:
    """Of each name the last value: not every step has all of them."""
    newest: dict[str, float] = {}
    for _, values in history.series:
        newest |= values
    return newest
