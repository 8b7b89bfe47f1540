"""The results as a picture: time over size, one line a candidate. Needs matplotlib."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from popdist.bench.results import ENGINE, FLOOR, Result


def figure_module() -> ModuleType:
    """Return matplotlib's module of figures.

    Raises:
        SystemExit: It is not installed.
    """
    # By name: it need not be installed.
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise SystemExit(
            "popdist.bench: A picture needs matplotlib, which cannot be imported "
            f"({error}). Install it with 'pip install matplotlib', or leave out --plot."
        ) from error


def draw(results: Sequence[Result], path: Path) -> None:
    """Write the picture to a file, of the kind that its name says."""
    figure(results).savefig(path)


# Any, because matplotlib need not be there when types are checked.
def figure(results: Sequence[Result]) -> Any:
    """Return a picture with axes for each operation and dtype, all logarithmic."""
    kinds = list(dict.fromkeys((r.operation, r.dtype) for r in results))
    whole = figure_module().Figure(figsize=(7 * len(kinds), 5), layout="constrained")
    fields = whole.subplots(1, len(kinds), squeeze=False)[0]
    for field, kind in zip(fields, kinds, strict=True):
        here = [r for r in results if (r.operation, r.dtype) == kind]
        for name, points in lines(here).items():
            field.loglog(*zip(*points, strict=True), marker=".", label=name)
        field.set_title(f"{', '.join(kind)}, {results[0].members} members")
        field.set_xlabel("bytes")
        field.set_ylabel("microseconds, slowest member")
        field.grid(visible=True, alpha=0.3)
        field.legend()
    return whole


def lines(results: Sequence[Result]) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each line, as bytes and microseconds."""
    points: dict[str, list[tuple[int, float]]] = {ENGINE: []}
    for result in results:
        points[ENGINE].append((result.bytes, result.engine_us))
        for name, us in {**result.peers, FLOOR: result.floor_us}.items():
            points.setdefault(name, []).append((result.bytes, us))
    return points
