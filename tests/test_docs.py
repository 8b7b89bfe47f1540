import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
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
