import ast
import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import popdist
import poprun
from poprun.options import grammar
from poprun.options.table import BY_NAME, BY_SHORT
from poprun.reach.connections import ssh_failures
from poprun.result import hints

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)\)")


def script(name: str) -> Any:
    """Import a script."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [
        link
        for link in LINK.findall(page.read_text())
        if not (page.parent / link).exists()
    ]

    assert broken == []


def test_pictures_are_small_and_name_no_folder_of_a_machine() -> None:
    pictures = sorted((ROOT / "docs" / "images").iterdir())

    names = [picture.stem for picture in pictures]
    assert names == ["failure", "run", "top", "trace"]
    for picture in pictures:
        assert picture.stat().st_size < 150_000
        drawn = picture.read_text()
        assert str(ROOT) not in drawn
        assert "/lib/python" not in drawn


def test_the_site_lists_every_page() -> None:
    text = (ROOT / "scripts" / "mkdocs.yml").read_text()
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]

    assert len(pages) > 20
    assert [name for name in pages if f"docs/{name}" not in text] == []


@pytest.mark.parametrize("name", ["options.md", "poprun.1"])
def test_the_page_of_options_is_what_the_table_says(name: str) -> None:
    written = (ROOT / "docs" / name).read_text()
    made = script("document_options").FILES[name]()

    assert written == made, "run: python scripts/document_options.py"


def test_the_page_of_results_has_the_fields_of_the_schemas() -> None:
    written = (ROOT / "docs" / "results.md").read_text()
    made = script("document_formats").page(written)

    assert written == made, "run: python scripts/document_formats.py"


def test_the_readme_opens_with_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()

    assert re.search(r"```\n(.*?)```", readme, re.DOTALL)[1] == "make demo\nmake test\n"


def test_every_variable_of_the_contract_is_documented() -> None:
    contract = (ROOT / "popdist" / "environment.py").read_text()
    page = (ROOT / "docs" / "environment.md").read_text()
    names = re.findall(r'^[A-Z_]+ = "(POPDIST_[A-Z_]+)"$', contract, re.MULTILINE)

    assert len(names) > 15
    assert [name for name in names if name not in page] == []


def test_the_reference_is_what_the_docstrings_say() -> None:
    written = (ROOT / "docs" / "reference.md").read_text()
    made = script("document_api").page()

    assert written == made, "run: python scripts/document_api.py"


def test_the_reference_has_every_public_name() -> None:
    written = (ROOT / "docs" / "reference.md").read_text()
    headings = "\n".join(re.findall(r"^#+ .*|^\| `popdist\.errors\..*", written, re.M))

    missing = [
        name
        for name in (*popdist.__all__, *poprun.__all__)
        if not re.search(rf"\b{name}\b", headings)
    ]

    assert missing == []


def test_the_guide_mentions_every_option() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text()
    spellings = [
        *(f"--{name}" for name in BY_NAME),
        *(f"-{name}" for name in BY_SHORT),
    ]

    missing = [
        option for option in spellings if not re.search(rf"{option}(?![\w-])", guide)
    ]

    assert len(spellings) > 60
    assert missing == []


def texts_of_the_code() -> Iterator[str]:
    """Yield all texts of the packages; what is filled in stands as a zero byte."""
    for package in ("poprun", "popdist"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "\0"
                        for part in node.values
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_every_message_of_the_page_of_troubles_is_in_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    texts = "\x01".join(text.replace("\n", " ") for text in texts_of_the_code())

    missing = [
        message
        for message in messages
        if not re.search("[^\x01]*".join(map(re.escape, message.split("..."))), texts)
    ]

    assert len(messages) > 80
    assert missing == []


def test_the_page_of_troubles_has_what_poprun_hints_at() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    expected = [
        *(text for text in hints.SHORTAGES),
        *(number.name for number in hints.SIGNALS),
        *(meaning for meaning, _ in ssh_failures._EXPLANATIONS.values()),
        *(name for name in popdist.__all__ if name.endswith("Error")),
    ]

    missing = [text for text in expected if text.lower() not in page.lower()]

    assert missing == []


FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What ends the words of a command in a shell.
OPERATORS = re.compile(r"\d?>.*|[|&;()].*")


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command line of poprun in a page."""
    text = page.read_text()
    blocks = [block for language, block in FENCE.findall(text) if not language]
    blocks += re.findall(r"^    (.*)", FENCE.sub("", text), re.MULTILINE)
    for block in blocks:
        lines = block.replace("\\\n", " ").splitlines()
        prompt = r"\$ " if any(line.startswith("$ ") for line in lines) else ""
        for line in lines:
            command = re.match(rf"{prompt}(?:\w+=\S+ )*poprun (.*)", line)
            if command:
                words = shlex.shlex(command[1], posix=True, punctuation_chars=True)
                words.whitespace_split = True
                yield list(
                    itertools.takewhile(lambda w: not OPERATORS.fullmatch(w), words)
                )


def test_every_command_line_of_poprun_has_options_that_exist() -> None:
    commands = [words for page in PAGES for words in commands_of(page)]

    for words in commands:
        grammar.parse(words)

    assert len(commands) > 50
