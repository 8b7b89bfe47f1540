"""Count the lines of poprun and popdist, and print the longest modules and functions.

Code is counted without comments, docstrings and blank lines. A length above the aim
is a question to ask, not an error. `size.py 20` prints 20.
"""

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("poprun", "popdist")
AIMS = {"modules": 250, "functions": 40}
NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    paths = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.*"))]
    modules = [path for path in paths if path.suffix in (".py", ".pyi")]
    sources = [path for path in paths if path.suffix in (".c", ".h")]
    show_totals("poprun", [path for path in modules if "poprun" in parts(path)[0]])
    vipu = [path for path in modules if parts(path)[:2] == ("poprun", "vipu")]
    show_totals("  of that, V-IPU", vipu)
    show_totals("popdist", [path for path in modules if "popdist" in parts(path)[0]])
    show_totals("the C core", sources)
    show_totals("all", modules + sources)
    print()
    show("modules", [(length(path), place(path)) for path in modules], count)
    show("functions", [item for path in modules for item in functions(path)], count)


def show_totals(what: str, paths: list[Path]) -> None:
    lines = sum(length(path) for path in paths)
    code = sum(len(code_lines(path)) for path in paths)
    comments = sum(len(comment_lines(path)) for path in paths)
    print(
        f"{what:17}{len(paths):4} files {lines:6} lines {code:6} of code "
        f"{comments:5} of comments and docstrings ({comments / lines:.1%})"
    )


def parts(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).parts


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def code_lines(path: Path) -> set[int]:
    """Return the numbers of the lines that hold more than a comment or docstring."""
    if path.suffix in (".c", ".h"):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", blank, path.read_text(), flags=re.S)
        return {n for n, line in enumerate(text.splitlines(), 1) if line.strip()}
    with path.open("rb") as file:
        spans = [
            range(token.start[0], token.end[0] + 1)
            for token in tokenize.tokenize(file.readline)
            if token.type not in NO_CODE
        ]
    return {line for span in spans for line in span} - docstring_lines(path)


def comment_lines(path: Path) -> set[int]:
    written = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return {number for number, line in written if line.strip()} - code_lines(path)


def blank(comment: re.Match[str]) -> str:
    return "\n" * comment.group().count("\n")


def docstring_lines(path: Path) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(
                node,
                ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
            )
            and ast.get_docstring(node) is not None
        ):
            lines |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


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
