"""The folders keep the budgets of lines that scripts/size_budgets.toml sets."""

import runpy
from pathlib import Path

SIZE = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "size.py"))


def test_every_folder_keeps_its_budget() -> None:
    complaints = SIZE["complaints"](SIZE["sizes"](), SIZE["read_budgets"]())

    assert not complaints, "\n".join([*complaints, "Raise it to keep the code."])


def test_a_folder_above_its_budget_is_seen() -> None:
    found = {"poprun/kept": 10, "poprun/above": 11, "poprun/new": 1}
    budgets = {"poprun/kept": 10, "poprun/above": 10, "poprun/gone": 5}

    assert SIZE["complaints"](found, budgets) == [
        "poprun/above has 11 lines of code, and its budget in "
        "scripts/size_budgets.toml is 10.",
        "poprun/gone has 0 lines of code, and its budget in "
        "scripts/size_budgets.toml is 5.",
        "poprun/new has 1 lines of code, and its budget in "
        "scripts/size_budgets.toml is not set.",
    ]


def test_comments_docstrings_and_blank_lines_are_no_code(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Say what\n\nit is."""\n\n# Why.\nx = """two\nlines"""  # And why.\n\n\n'
        'def f():\n    """Return x."""\n    return x\n'
    )
    header = tmp_path / "core.h"
    header.write_text("/* Why\n   and how. */\nint x; // one\n\nint y;\n")

    assert SIZE["code_lines"](module) == {6, 7, 10, 12}
    assert SIZE["code_lines"](header) == {3, 5}
