"""docs/popart.md lists the operators that there are, and no others."""

import re
from pathlib import Path

from popart import operators
from popart.builder.graphcore_methods import GRAPHCORE_METHODS

PAGE = Path(__file__).parents[4] / "docs/popart.md"


def listed(after: str) -> list[str]:
    """Return the names in the paragraph after a line."""
    text = PAGE.read_text().split(f"\n{after}\n\n")[1].split("\n\n")[0]
    return re.findall("`([A-Za-z0-9]+)`", text)


def test_the_page_lists_the_operators_of_onnx() -> None:
    assert listed("ONNX:") == sorted(operators.ONNX)


def test_the_page_lists_the_operators_of_graphcore() -> None:
    assert listed("`aiGraphcore`:") == sorted(GRAPHCORE_METHODS)
