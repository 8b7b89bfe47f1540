"""Several programs in one command line: poprun -n 1 a : -n 3 b."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from poprun.errors import OptionError
from poprun.options.completion import complete
from poprun.options.grammar import parse
from poprun.options.programs import (
    Program,
    explain_misplaced,
    name_of,
    resolve_programs,
    words_of,
)
from poprun.options.settings import Settings


def resolve(
    *words: str, environ: Mapping[str, str] | None = None
) -> tuple[Settings, list[Program]]:
    return resolve_programs(parse(words), environ or {})


def refusal(*words: str) -> list[str]:
    with pytest.raises(OptionError) as refused:
        resolve(*words)
    return [str(refused.value), *getattr(refused.value, "__notes__", [])]


def test_instances_are_numbered_through_the_programs() -> None:
    settings, programs = resolve(
        *("-v", "-n", "1", "python", "a.py", "-x", ":"),
        *("--np=3", "b", "--", "-n", ":", "-n2", "--", "c", ":", "-n", "9"),
    )

    assert programs == [
        Program(argv=("python", "a.py", "-x"), instances=range(1)),
        Program(argv=("b", "--", "-n"), instances=range(1, 4)),
        # After -- it is an argument.
        Program(argv=("c", ":", "-n", "9"), instances=range(4, 6)),
    ]
    assert (settings["num-instances"], settings["num-replicas"]) == (6, 6)
    assert settings["verbose"] == 1
    assert words_of(programs) == [
        *("python", "a.py", "-x", ":", "b", "--", "-n", ":", "c", ":", "-n", "9")
    ]


def test_a_colon_after_two_dashes_is_an_argument() -> None:
    _, programs = resolve("-n", "2", "--", "expr", "a", ":", "a")

    assert programs == [Program(argv=("expr", "a", ":", "a"), instances=range(0))]


def test_variables_and_a_directory_are_those_of_one_program(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("cwd: of-file\nenv: [F=1]\ngrace: 7\n")
    settings, programs = resolve(
        f"--import-config={tmp_path}/job.yaml",
        *("-n", "1", "--env=A=1", "--env", "0:B", "a", ":"),
        *("-n", "1", "--cwd=c", "b", ":", "-n", "1", "--env=D=4", "d"),
        environ={"POPRUN_CWD": "of-variable"},
    )

    assert [(p.variables, p.cwd) for p in programs] == [
        ((("", "A", "1"), ("0", "B", None)), "of-variable"),
        ((("", "F", "1"),), "c"),
        ((("", "D", "4"),), "of-variable"),
    ]
    assert settings["grace"] == 7


@pytest.mark.parametrize(
    ("words", "instances", "replicas"),
    [
        (["-n", "1", "a", ":", "-n", "3", "b"], 4, 4),
        (["--num-replicas=8", "-n", "1", "a", ":", "-n", "3", "b"], 4, 8),
        (["--num-instances=1", "a", ":", "--num-instances=1", "b"], 2, 1),
        (["--num-instances=1", "a", ":", "-n", "1", "b"], 2, 2),
    ],
)
def test_the_replicas_are_those_of_the_whole_job(
    words: list[str], instances: int, replicas: int
) -> None:
    settings, _ = resolve(*words, environ={"POPRUN_NUM_PROCESSES": "7"})

    numbers = settings["num-instances"], settings["num-replicas"]
    assert numbers == (instances, replicas)


HINT = "To pass ':' to a program as an argument, write -- before the program."
WRITTEN = f"Several programs are written as: poprun -n 1 a.py : -n 3 b.py. {HINT}"


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("-n 1 : -n 1 b", ["The program before ':' is missing.", WRITTEN]),
        ("-n 1 a :", ["The program after ':' is missing.", WRITTEN]),
        ("-n 1 a : : b", ["The program after ':' is missing.", WRITTEN]),
        ("-n 1 a : -n 1", ["The program after ':' is missing.", WRITTEN]),
        (
            "-n 1 a : -n",
            ["The value of -n is missing at the end of the line.", "Write -n N."],
        ),
        (
            "-n 1 a : -vn 1 b",
            [
                "-v comes after ':', but it applies to the whole job.",
                "Write it before the first program. Only -n, --num-instances, --env "
                "and --cwd can follow ':'.",
            ],
        ),
        (
            "-n 1 a : b : -n 1 c",
            [
                "The program 'b' has no number of instances. Where ':' separates "
                "several programs, each has its own: poprun -n 1 a.py : -n 3 b.py",
                HINT,
            ],
        ),
        (
            "expr a : b",
            [
                "The program 'expr' has no number of instances. Where ':' separates "
                "several programs, each has its own: poprun -n 1 a.py : -n 3 b.py",
                HINT,
            ],
        ),
        (
            "-n 1 python a.py : python -u b.py",
            [
                "The program 'b.py' has no number of instances. Where ':' separates "
                "several programs, each has its own: poprun -n 1 a.py : -n 3 b.py",
                HINT,
            ],
        ),
        (
            "-n 1 a : -n x b",
            [
                "-n is 'x', but must be a whole number in plain digits, such as 4, or "
                "auto."
            ],
        ),
        (
            "-n 1 a : -n auto b",
            [
                "The number of instances of 'b' is auto, which is for a job of one "
                "program. Write a number."
            ],
        ),
    ],
)
def test_what_is_no_list_of_programs_is_refused(
    line: str, sentences: list[str]
) -> None:
    assert refusal(*line.split()) == sentences


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("./a.sh -x", "a.sh"),
        ("/usr/bin/python3.11 -u -W error -X dev dir/train.py --lr 1", "train.py"),
        ("python -m pkg.train x", "pkg.train"),
        ("python -Bc print(1)", "python -c"),
        ("python3 -Im pkg.train", "pkg.train"),
        ("bash -m run.sh", "run.sh"),
        ("python -c print(1) a.py", "python -c"),
        ("python folder/", "folder"),
        ("python", "python"),
        ("bash -e run.sh x", "run.sh"),
        ("sh -c echo", "sh -c"),
        ("nice python a.py", "nice"),
    ],
)
def test_a_program_is_known_by_its_script(line: str, name: str) -> None:
    assert name_of(line.split()) == name


def test_after_a_colon_completion_offers_the_options_of_one_program() -> None:
    names = [item.value for item in complete(["-n", "1", "a", ":"], "--")]

    assert {"--num-instances", "--np", "--env", "--cwd"} < set(names)
    assert not {"--host", "--verbose", "--sync"} & set(names)
    assert [item.type for item in complete(["-n", "1", "a", ":", "-n", "1"], "")] == [
        "file"
    ]


# --- Options of poprun after the program, where they have no effect.


def misplaced(words: Sequence[str], given: Collection[str] = ()) -> list[str]:
    """Return the options that the sentence names."""
    return re.findall(r"--[\w-]+", " ".join(explain_misplaced(words, given)))


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
    assert misplaced(shlex.split(program)) == flags


def test_options_that_poprun_has_got_may_be_the_programs_too() -> None:
    program = ["x", "--num-replicas=4", "--num-instances=2"]

    assert misplaced(program, {"num-replicas"}) == ["--num-instances"]


def test_one_sentence_names_them_all() -> None:
    flags = ["--num-ilds", "--num-replicas", "--vipu-partition"]

    assert explain_misplaced([]) == []
    assert explain_misplaced(["x", flags[0]]) == [
        "--num-ilds comes after the program, so it is passed to the program. Write "
        "poprun's options before the program."
    ]
    assert explain_misplaced(["x", *flags]) == [
        "--num-ilds, --num-replicas and --vipu-partition come after the program, so "
        "they are passed to the program. Write poprun's options before the program."
    ]
