"""What a comment or docstring names exists: a file, a module, a function, an option.

Names of other projects (libc's functions, options of mpirun) are listed below or
stand in our code, too.
"""

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

# The first test reads the whole tree.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parent.parent
PACKAGES = ("poprun", "popdist")
FOLDERS = (*PACKAGES, "scripts", "examples")
PYTHON = (".py", ".pyi")

FILE = re.compile(r"(?<![\w/.-])(?:\w+/)*(\w+\.(?:py|c|h|md|toml|json))\b")
FUNCTION = re.compile(r"(?<![\w.-])(?:\w+\.)*(\w+)\(\)")
OPTION = re.compile(r"(?<![\w-])--([a-z]\w*(?:-\w+)*)")
MODULE = re.compile(r"(?<![\w.-])(?:poprun|popdist)(?:\.\w+)+")

# They are named, and neither defined nor called here.
OTHERS = {
    # Linux
    "mlockall",
    # torch
    "get_backend",
    # Placeholders
    "LEVEL.c",
    "a.py",
}


@cache
def sources() -> list[Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (*PYTHON, ".c", ".h")
    ]


@cache
def comments(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix not in PYTHON:
        return re.findall(r"/\*.*?\*/", text, re.DOTALL)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    docstrings = (
        ast.get_docstring(node, clean=False)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    )
    return [
        *(token.string for token in tokens if token.type == tokenize.COMMENT),
        *(docstring for docstring in docstrings if docstring),
    ]


@cache
def code() -> str:
    """All sources without their comments, and the names of all files."""
    files = [path.name for path in ROOT.glob("*.*")]
    for folder in (*FOLDERS, "docs", "tests"):
        files += [path.name for path in (ROOT / folder).rglob("*.*")]
    texts = [" ".join(files)]
    for path in sources():
        text = path.read_text(encoding="utf-8")
        for comment in comments(path):
            text = text.replace(comment, "")
        texts.append(text)
    return "\n".join(texts)


@cache
def words() -> set[str]:
    return set(re.findall(r"\w+\.\w+|\w+(?:-\w+)+|\w+", code()))


def is_module(name: str) -> bool:
    """Whether it is a module of ours, or a name in one."""
    parts = name.split(".")
    while parts:
        path = ROOT.joinpath(*parts)
        if path.is_dir() or path.with_suffix(".py").exists():
            break
        parts.pop()
    return all(part in words() for part in name.split(".")[len(parts) :])


def strangers(text: str) -> Iterator[str]:
    """Return what the text names and nothing of ours is called."""
    known = (words(), OTHERS, dir(builtins))
    for pattern in (FILE, FUNCTION, OPTION):
        for name in pattern.findall(text):
            if not any(name in names for names in known):
                yield name
    yield from (name for name in MODULE.findall(text) if not is_module(name))


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_comment_names_exists(package: str) -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        if path.relative_to(ROOT).parts[0] == package
        for comment in comments(path)
        for name in strangers(comment)
    ]

    assert missing == [], "These are named in comments, and do not exist."


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("See router.py, and close() of poprun.output.writer.", []),
        ("See no_such.py.", ["no_such.py"]),
        ("Calls no_such_function() first.", ["no_such_function"]),
        ("Given --no-such-option.", ["no-such-option"]),
        ("As poprun.no_such.module does.", ["poprun.no_such.module"]),
    ],
)
def test_a_name_that_does_not_exist_is_seen(text: str, names: list[str]) -> None:
    assert list(strangers(text)) == names
