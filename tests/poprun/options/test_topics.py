import shutil
from pathlib import Path

import pytest

from poprun.options import topics

ROOT = Path(__file__).parents[3]
NO_MAN = {"PATH": "/nowhere"}


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prefix in which poprun is installed from a wheel."""
    for name in ("share/doc/poprun/docs/guide.md", "share/man/man1/poprun.1"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    module = tmp_path / "lib/python3.11/site-packages/poprun/options/topics.py"
    monkeypatch.setattr(topics, "__file__", str(module))
    return tmp_path


@pytest.fixture
def man(tmp_path: Path) -> Path:
    """A program man that finds no page yet."""
    program = tmp_path / "bin" / "man"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 16\n")
    program.chmod(0o755)
    return program


def test_the_page_names_the_pages_of_the_source_folder() -> None:
    page = topics.topics_page(NO_MAN)

    assert f"\nPages in {ROOT}/docs:\n  guide.md  " in page
    assert all((ROOT / "docs" / name).exists() for name in topics._PAGES)
    assert max(map(len, page.splitlines())) <= 80 + len(f"{ROOT}")


def test_an_installed_poprun_names_its_own_pages_and_where_manpath_must_point(
    prefix: Path, man: Path
) -> None:
    page = topics.topics_page({"PATH": str(man.parent)})

    assert f"\nPages in {prefix}/share/doc/poprun/docs:\n" in page
    assert f"\n  man {prefix}/share/man/man1/poprun.1\n" in page
    assert f"export MANPATH={prefix}/share/man:\n" in page


def test_manpath_is_not_mentioned_where_man_finds_the_page(
    prefix: Path, man: Path
) -> None:
    man.write_text(f"#!/bin/sh\necho {prefix}/share/man/man1/$2.1\n")

    page = topics.topics_page({"PATH": str(man.parent)})

    assert "\n  man poprun  " in page
    assert "MANPATH" not in page


def test_a_man_that_finds_nothing_but_succeeds_is_not_believed(
    prefix: Path, man: Path
) -> None:
    man.write_text("#!/bin/sh\necho This system has been minimized.\n")

    assert "MANPATH" in topics.topics_page({"PATH": str(man.parent)})


def test_without_man_and_without_pages_the_page_names_the_source_code(
    prefix: Path,
) -> None:
    shutil.rmtree(prefix / "share")

    page = topics.topics_page(NO_MAN)

    assert "man " not in page
    assert "\nThe pages are in the folder docs of poprun's source code.\n" in page
