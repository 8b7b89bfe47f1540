"""The site of the documentation, as `make site` builds it and a browser shows it."""

import html
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from browser import browse

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "scripts" / "mkdocs.yml"

# Chromium takes long to start on a busy machine.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = ["mkdocs", "build", "--strict", "-f", CONFIG, "-d", folder]
    subprocess.run([sys.executable, "-m", *build], check=True)
    return folder


def test_the_menu_has_each_page_once() -> None:
    menu = re.findall(r"\S+\.md$", CONFIG.read_text(), re.MULTILINE)

    assert [page for page, count in Counter(menu).items() if count > 1] == []
    assert len(menu) > 20


def test_the_search_finds_words_in_a_page_that_is_opened_as_a_file(
    site: Path, tmp_path: Path
) -> None:
    url = (site / "docs" / "guide.html").as_uri() + "?q=keep-going"

    shown = browse(url, tmp_path, "--virtual-time-budget=60000", "--dump-dom")

    assert re.search(r"[1-9]\d* matching documents", shown)


def test_the_site_loads_nothing_from_the_network(site: Path) -> None:
    loaded = (
        r'<(?:script|img|iframe)[^>]*src="?https?:|<link[^>]*stylesheet[^>]*https?:'
    )

    pages = sorted(site.rglob("*.html"))

    assert len(pages) > 20
    assert [page.name for page in pages if re.search(loaded, page.read_text())] == []


def test_the_copy_button_of_a_session_copies_its_commands_alone(site: Path) -> None:
    page = (site / "docs" / "coming_from.html").read_text()

    copied = [html.unescape(text) for text in re.findall(r'data-copy="([^"]*)"', page)]

    commands = "\n".join(copied).splitlines()
    assert [line for line in commands if line.endswith(" python ranks.py | sort")]
    assert '    echo "Hello world!" | sort' in commands
    assert not [line for line in commands if line.startswith(("$ ", "rank 0", "[1,0]"))]


def test_an_option_stays_on_one_line(site: Path) -> None:
    page = (site / "docs" / "coming_from.html").read_text()

    assert '<code><span class="word">--nproc-per-node=4</span></code>' in page
    assert ".word" in (site / "style.css").read_text()


def test_a_link_shows_the_title_of_its_page(site: Path) -> None:
    page = (site / "docs" / "coming_from.html").read_text()

    assert '<a href="hosts.html">Jobs on several hosts</a>' in page
    assert ".md</a>" not in page
