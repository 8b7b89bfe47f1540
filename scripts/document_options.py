"""Write docs/options.md from the table: python scripts/document_options.py"""

from pathlib import Path

from poprun.options.help import default_text, spelling
from poprun.options.table import GROUPS, NOT_BUILT_YET
from poprun.options.types import Option, variable

PAGE = Path(__file__).parent.parent / "docs" / "options.md"

INTRODUCTION = """\
# Options

Made from `poprun/options/table.py` by `python scripts/document_options.py`.

    poprun [OPTIONS] PROGRAM [ARGUMENTS]...

Every option may stand on the command line, in a variable (the second column), or in the
YAML file that `--import-config` names, there by its long name. The command line counts
for more than a variable, that for more than a file; `poprun --show-config` says what
holds and where it comes from. Names may be shortened as far as they stay unique.
"""


def page() -> str:
    """Return the whole document."""
    parts = [INTRODUCTION]
    for title, options in GROUPS.items():
        parts.append(f"\n## {title}\n")
        if note := NOT_BUILT_YET.get(title):
            parts.append(f"{note}\n")
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
