"""Print the longest modules and functions of poprun and popdist, in lines.

A length above the aim is a question to ask, not an error. `size.py 20` prints 20.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("poprun", "popdist")
AIMS = {"modules": 250, "functions": 40}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    paths = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    show("modules", [(length(path), place(path)) for path in paths], count)
    show("functions", [found for path in paths for found in functions(path)], count)


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            lines = last - node.lineno + 1
            yield lines, f"{place(path)}:{node.lineno} {node.name}"


def show(what: str, lengths: list[tuple[int, str]], count: int) -> None:
    total = sum(lines for lines, _ in lengths)
    above = sum(lines > AIMS[what] for lines, _ in lengths)
    print(
        f"{len(lengths)} {what} with {total} lines, {above} longer than {AIMS[what]}:"
    )
    for lines, where in sorted(lengths, reverse=True)[:count]:
        print(f"{lines:6}{'*' if lines > AIMS[what] else ' '} {where}")


if __name__ == "__main__":
    main()
