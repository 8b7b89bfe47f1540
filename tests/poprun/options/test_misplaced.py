"""Options of poprun that stand after the program, where they have no effect."""

import shlex

import pytest

from poprun.options.misplaced import _OWN, explain_misplaced, find_misplaced
from poprun.options.table import OPTIONS


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        ("echo hi --num-instances 4", ["--num-instances"]),
        (
            "x --num-replicas=4 --vipu-partition p",
            ["--num-replicas", "--vipu-partition"],
        ),
        ("x --num-replicas 4 --num-replicas 8", ["--num-replicas"]),
        # Programs have such options of their own.
        ("x --timeout 5 --verbose -n 4 --log-dir d --host a --trace t --np 2", []),
        ("x --num-instance 4 --Num-Instances num-instances -num-instances", []),
        ("sh -c 'x --num-instances 4'", []),
        # What stands there is for another program.
        ("/opt/bin/poprun --num-instances 4 x", []),
        ("python -m poprun --num-instances 4 x", []),
        ("x -- --num-instances 4", []),
        ("x --lr 1 poprun --num-instances 4", []),
    ],
)
def test_long_names_of_poprun_alone_are_found(program: str, flags: list[str]) -> None:
    assert find_misplaced(shlex.split(program)) == flags


def test_options_that_poprun_has_got_may_be_the_programs_too() -> None:
    program = ["x", "--num-replicas=4", "--num-instances=2"]

    assert find_misplaced(program, {"num-replicas"}) == ["--num-instances"]


def test_every_name_is_that_of_an_option() -> None:
    assert OPTIONS.keys() >= _OWN


def test_one_sentence_names_them_all() -> None:
    assert list(explain_misplaced([])) == []
    assert list(explain_misplaced(["--a"])) == [
        "--a comes after the program, so it is passed to the program. Write poprun's "
        "options before the program."
    ]
    assert list(explain_misplaced(["--a", "--b", "--c"])) == [
        "--a, --b and --c come after the program, so they are passed to the program. "
        "Write poprun's options before the program."
    ]
