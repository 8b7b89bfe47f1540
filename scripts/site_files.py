"""A hook of mkdocs: which files the site has, and what differs from GitHub's Markdown.

The pages link to README, examples and schemas by relative paths. The site has all of
them at the same paths, so that the links need no change.
"""

import html
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CODE = re.compile(r"<code>(.*?)</code>", re.DOTALL)
BLOCK = re.compile(r"<pre>(<span></span><code>\$ .*?</code>)</pre>", re.DOTALL)
# A browser breaks lines after hyphens, and a long word in a narrow column anywhere.
WORD = re.compile(r"[\w.]*[-_][\w.=:-]*")
LONGEST_WORD = 40
# A link that shows the name of a file, as in [hosts.md](hosts.md#slurm).
LINK = re.compile(r"\[[\w./]+\.md\]\(([\w./]+\.md)")
TAG = re.compile(r"<[^>]*>")

ROOT = Path(__file__).parent.parent
PATTERNS = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs/*.md"),
    *("docs/images/*", "examples/**/*.*", "examples/Dockerfile"),
    "poprun/result/schemas/*.json",
)


def on_files(files: Files, config: Any) -> Files:
    """Return the theme's files and those of the source folder that pages link to."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
    ours = [
        File(
            str(path.relative_to(ROOT)),
            str(ROOT),
            config.site_dir,
            config.use_directory_urls,
        )
        for path in paths
        if path.is_file() and not {"__pycache__", "cache"} & set(path.parts)
    ]
    return Files([*theme, *ours])


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return the text with titles for names of files, and bars as mkdocs has them."""
    folder = ROOT / Path(page.file.src_uri).parent
    markdown = LINK.sub(lambda link: f"[{title(folder / link[1])}]({link[1]}", markdown)
    file = re.compile(r"^( *```\w+) file=(\S+)$", re.MULTILINE)
    markdown = file.sub(r'\1 title="\2"', markdown)
    markdown = markdown.replace("```python cell", "```python")
    # In the code of a table, GitHub wants them escaped.
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), markdown)


def title(path: Path) -> str:
    """Return the title of a page."""
    [heading] = re.findall(r"\A# (.*)", path.read_text(encoding="utf-8"))
    return str(heading)


def on_page_content(content: str, **_: Any) -> str:
    """Return the page with words of code that stay whole, and commands to copy."""
    return BLOCK.sub(with_commands, CODE.sub(with_whole_words, content))


def with_whole_words(code: re.Match[str]) -> str:
    """Return code with its options, variables and the like marked to stay whole."""
    if "<" in code[1]:
        return code[0]
    return f"<code>{WORD.sub(marked, code[1])}</code>"


def marked(word: re.Match[str]) -> str:
    """Return a word that stays whole, unless it is too long for a narrow screen."""
    if len(word[0]) > LONGEST_WORD:
        return word[0]
    return f'<span class="word">{word[0]}</span>'


def with_commands(block: re.Match[str]) -> str:
    """Return a session in which the copy button copies the commands alone."""
    commands, goes_on = [], False
    for line in html.unescape(TAG.sub("", block[1])).splitlines():
        if goes_on or line.startswith("$ "):
            commands.append(line if goes_on else line.removeprefix("$ "))
            goes_on = line.endswith("\\")
    copied = html.escape("\n".join(commands))
    return f'<pre data-copy="{copied}">{block[1]}</pre>'
