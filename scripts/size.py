"""Print the lines of code of each folder beside its budget in size_budgets.toml.

Code is counted without comments, docstrings and blank lines. The longest modules and
functions follow; a length above the aim is a question to ask, not an error.
`size.py 20` prints 20 of them. `size.py --set-budgets` sets each budget to today's
lines.
"""

import ast
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("poprun", "popdist")
BUDGETS = ROOT / "scripts" / "size_budgets.toml"
BUDGETS_COMMENT = """\
# The most lines of code that each folder may have; `make size` prints them beside
# the lines of today. If a change needs more, raise the budget in the same commit.
"""
TOTALS = {
    "all of poprun": r"poprun\b",
    "poprun without vipu": r"poprun\b(?!/vipu)",
    "all of popdist": r"popdist\b",
}
C_FILES = (".c", ".h")
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
    if "--set-budgets" in sys.argv:
        budgets = "".join(f'"{name}" = {lines}\n' for name, lines in sizes().items())
        BUDGETS.write_text(BUDGETS_COMMENT + budgets, encoding="utf-8")
        return
    show_budgets()
    print()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    modules = [path for path in sources() if path.suffix not in C_FILES]
    show("modules", [(length(path), place(path)) for path in modules], count)
    show("functions", [item for path in modules for item in functions(path)], count)


def sources() -> list[Path]:
    suffixes = (".py", ".pyi", *C_FILES)
    paths = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.*"))]
    return [path for path in paths if path.suffix in suffixes]


def sizes() -> dict[str, int]:
    """Return the lines of code of each folder directly below a package.

    Modules directly in a package count as the package itself, and C as a language.
    """
    counts: Counter[str] = Counter()
    for path in sources():
        package, *rest = path.relative_to(ROOT).parts
        folder = f"{package}/{rest[0]}" if len(rest) > 1 else package
        name = f"{package} in C" if path.suffix in C_FILES else folder
        counts[name] += len(code_lines(path))
    return dict(sorted(counts.items()))


def read_budgets() -> dict[str, int]:
    return tomllib.loads(BUDGETS.read_text(encoding="utf-8"))


def complaints(found: dict[str, int], budgets: dict[str, int]) -> list[str]:
    """Return a sentence about each folder that does not keep its budget."""
    return [
        f"{name} has {found.get(name, 0)} lines of code, and its budget in "
        f"{BUDGETS.relative_to(ROOT)} is {budgets.get(name, 'not set')}."
        for name in sorted(found.keys() | budgets.keys())
        if name not in budgets or not 0 < found.get(name, 0) <= budgets[name]
    ]


def show_budgets() -> None:
    found, budgets = sizes(), read_budgets()
    print(f"{'lines of code':24}{'now':>7}{'budget':>8}")
    for name in sorted(found.keys() | budgets.keys()):
        show_line(name, found.get(name, 0), budgets.get(name, 0))
    for title, pattern in TOTALS.items():
        inside = [name for name in found if re.match(pattern, name)]
        budget = sum(budgets.get(name, 0) for name in inside)
        show_line(title, sum(found[name] for name in inside), budget)
    comments = sum(len(comment_lines(path)) for path in sources())
    written = sum(length(path) for path in sources())
    print(f"Comments and docstrings: {comments} of {written} lines")


def show_line(name: str, lines: int, budget: int) -> None:
    print(f"{name:24}{lines:7}{budget:8}{' *' if lines > budget else ''}")


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def code_lines(path: Path) -> set[int]:
    """Return the numbers of the lines that hold more than a comment or docstring."""
    if path.suffix in C_FILES:
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
