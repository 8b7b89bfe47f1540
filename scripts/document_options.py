"""Write docs/options.md from the table: python scripts/document_options.py"""

from pathlib import Path

from poprun.options.help import default_text, spelling
from poprun.options.table import GROUPS
from poprun.options.types import Option, variable

PAGE = Path(__file__).parent.parent / "docs" / "options.md"

INTRODUCTION = """\
# Options

Made from `poprun/options/table.py` by `python scripts/document_options.py`.

    poprun [OPTIONS] PROGRAM [ARGUMENTS]...

An option is given on the command line, in a variable (the second column), or by its
long name in the YAML file of `--import-config`. The command line overrides variables,
and variables override the file; `poprun --show-config` shows each value and its origin.
Names may be shortened to unique prefixes.
"""


def page() -> str:
    """Return the whole document."""
    parts = [INTRODUCTION]
    for title, options in GROUPS.items():
        parts.append(f"\n## {title}\n")
        parts.append("| option | variable | default | meaning |")
        parts.append("| --- | --- | --- | --- |")
        parts += [row(option) for option in options]
    return "\n".join(parts) + "\n"


def row(option: Option) -> str:
    environment = f"`{variable(option.name)}`" if option.in_environment else "-"
    cells = [f"`{spelling(option)}`", environment, default_text(option), option.help]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page())
