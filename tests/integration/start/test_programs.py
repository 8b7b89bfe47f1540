"""Jobs of several programs: poprun -n 1 a : -n 3 b."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from conftest import Poprun, mpirun_of

from poprun.python_calls import run_command

SCHEMAS = Path(__file__).parents[3] / "poprun/result/schemas"
TELL = """
import os, sys
names = ("RANK", "WORLD_SIZE", "POPDIST_NUM_LOCAL_REPLICAS", "A")
values = [*(os.environ.get(n) for n in names), os.getcwd()]
print(os.path.basename(sys.argv[0]), sys.argv[1:], values)
"""
SUM = """
import numpy, popdist, sys
print(popdist.instance_group().all_reduce(numpy.int64([int(sys.argv[1])]))[0])
"""
LOCAL = ("--mpirun", "local")


@pytest.mark.mpi
@pytest.mark.parametrize("mpi", ["openmpi5", "openmpi4", "hydra", "local"])
def test_each_instance_runs_its_program(poprun: Poprun, mpi: str) -> None:
    for name in ("a.py", "b.py"):
        poprun.script(name, TELL)
    (poprun.directory / "sub").mkdir()
    path = "local" if mpi == "local" else mpirun_of(mpi)
    here = os.path.realpath(poprun.directory)

    ran = poprun(
        *("--mpirun", path, "--num-replicas", "8", "-n", "1", "--env=A=1"),
        *("python", "a.py", "x y", ":", "-n", "3", "--env", "2:A=2", "--cwd", "sub"),
        *("python", f"{here}/b.py", "-n", "--", "é"),
    )

    assert (ran.code, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == [
        f"a.py ['x y'] ['0', '4', '2', '1', {here!r}]",
        *(
            f"b.py ['-n', '--', 'é'] ['{rank}', '4', '2', {value}, '{here}/sub']"
            for rank, value in ((1, None), (2, "'2'"), (3, None))
        ),
    ]


@pytest.mark.mpi
@pytest.mark.parametrize("mpi", ["openmpi5", "hydra"])
def test_programs_meet_in_a_collective_and_in_mpi(poprun: Poprun, mpi: str) -> None:
    poprun.script("sum.py", SUM)
    in_mpi = "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))"

    ran = poprun(
        *("--mpirun", mpirun_of(mpi), "-n", "1", "python", "sum.py", "1", ":"),
        *("-n", "2", "python", "sum.py", "20"),
    )
    both = poprun(
        *("--mpirun", mpirun_of(mpi), "-n", "1", "python", "-c", in_mpi, ":"),
        *("-n", "1", "python", "-uc", in_mpi),
    )

    assert (ran.code, ran.stdout) == (0, "41\n" * 3), ran.stderr
    assert (both.code, both.stdout) == (0, "2\n" * 2), both.stderr


def test_a_failure_names_the_program(poprun: Poprun) -> None:
    poprun.script("a.py", "import time; open('begun', 'w'); time.sleep(600)")
    poprun.script(
        "b.py",
        "import os, time\n"
        "while not os.path.exists('begun'): time.sleep(0.01)\n"
        "exit(3 * (os.environ['RANK'] == '2'))\n",
    )

    ran = poprun(
        *(*LOCAL, "--summary", "--result=r", "--events=e", "-n", "1"),
        *("python", "a.py", ":", "-n", "2", "python", "b.py", "--x"),
    )

    assert ran.code == 3
    assert "0         a.py     localhost  SIGTERM, stopped" in ran.stderr
    cause = "Instance 2 (b.py) on localhost exited with code 3."
    assert ran.stderr.splitlines()[-1] == f"poprun: error: {cause}"
    result = json.loads((poprun.directory / "r").read_text())
    validate("result", result)
    programs = [["python", "a.py"], *[["python", "b.py", "--x"]] * 2]
    assert result["cause"] == cause
    assert result["program"] == ["python", "a.py", ":", "python", "b.py", "--x"]
    assert [i["program"] for i in result["attempts"][0]["instances"]] == programs
    events = (poprun.directory / "e").read_text().splitlines()
    started = json.loads(events[0])
    validate("events", started)
    assert (started["program"], started["programs"]) == (result["program"], programs)


def validate(name: str, value: Any) -> None:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema_rs.validator_for(schema).validate(value)


def test_a_program_that_cannot_be_started_is_refused_before_all(
    poprun: Poprun,
) -> None:
    (poprun.directory / "b.sh").touch()

    missing = poprun(*LOCAL, "-n", "1", "touch", "ran", ":", "-n", "1", "nothing")
    broken = poprun(*LOCAL, "-n", "1", "touch", "ran", ":", "-n", "1", "./b.sh")

    assert missing.code == 127
    assert missing.stderr.startswith("poprun: error: There is no program 'nothing'")
    assert (broken.code, broken.stderr) == (
        126,
        "poprun: error: ./b.sh is not executable; make it executable with: chmod +x "
        "./b.sh\n",
    )
    assert not (poprun.directory / "ran").exists()


def test_a_dry_run_shows_each_program(poprun: Poprun) -> None:
    words = (*LOCAL, "--dry-run", "-n", "1", "echo", "a b", ":", "-n", "1", "true")

    text = poprun(*words).stdout
    value = json.loads(poprun("--json", *words).stdout)

    assert "\ninstance 0 on localhost:\n  runs echo 'a b'\n" in text
    assert "\ninstance 1 on localhost:\n  runs true\n" in text
    _, command, *_ = text.splitlines()
    assert "'echo' 'a b' ':'" in command
    assert command.endswith(" 'true'")
    assert value["program"] == ["echo", "a b", ":", "true"]
    assert [i["program"] for i in value["instances"]] == [["echo", "a b"], ["true"]]


def test_an_instance_of_any_program_gets_the_input(poprun: Poprun) -> None:
    (poprun.directory / "input").write_text("typed\n")
    with open(poprun.directory / "input") as file:
        ran = poprun(
            *(*LOCAL, "--stdin=1", "--trace=t", "-n1", "true", ":", "-n2", "cat"),
            stdin=file,
        )

    assert (ran.code, ran.stdout, ran.stderr) == (0, "typed\n", "")
    assert (poprun.directory / "t").stat().st_size


def test_a_restart_runs_each_program_again(poprun: Poprun) -> None:
    ran = poprun(
        *(*LOCAL, "--max-restarts=1", "-n", "1", "sh", "-c", "echo a; sleep 0.1", ":"),
        *("-n", "1", "sh", "-c", "echo b; test $POPDIST_RESTART_COUNT = 1"),
    )

    assert ran.code == 0
    assert {"a", "b"} == set(ran.stdout.splitlines()[-2:])
    assert "Instance 1 (sh -c) on localhost exited with code 1." in ran.stderr


def test_python_calls_run_several_programs(poprun: Poprun) -> None:
    words = [*LOCAL, "-n", "1", "echo", "a", ":", "-n", "1", sys.executable, "-c", ""]
    result = run_command(words, capture_output=True)

    assert (result.exit_code, result.stdout) == (0, "a\n")
    assert [i.program for i in result.instances] == [["echo", "a"], words[-3:]]
