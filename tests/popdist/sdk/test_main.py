import json
import subprocess
import sys
from pathlib import Path

import pytest
from python_environments import PythonEnvironment, make_environment

from popdist.sdk.finder import PACKAGES
from popdist.sdk.switch import NAME

STAND_IN = f"{PACKAGES}/horovod/__init__.py"
SHOW = (
    "import json, sys, horovod\n"
    "print(json.dumps([sys.argv, sys.path[0], __name__, horovod.__file__]))\n"
)


def run(
    python: str, *words: str, cwd: Path, **environ: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [python, *words],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        timeout=200,
    )


def command(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return run(sys.executable, "-m", "popdist.sdk", *words, cwd=cwd)


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> PythonEnvironment:
    folder = tmp_path_factory.mktemp("environment")
    return make_environment(folder, popdist=True)


def test_a_program_runs_as_under_plain_python(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "program.py").write_text(SHOW)

    done = command("bin/program.py", "--lr", "0.1", cwd=tmp_path)

    assert json.loads(done.stdout) == [
        ["bin/program.py", "--lr", "0.1"],
        f"{tmp_path}/bin",
        "__main__",
        STAND_IN,
    ]


def test_a_module_runs_as_under_plain_python(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(SHOW)

    done = command("-m", "module", "a", cwd=tmp_path)

    assert json.loads(done.stdout) == [
        [f"{tmp_path}/module.py", "a"],
        str(tmp_path),
        "__main__",
        STAND_IN,
    ]


def test_the_exit_code_is_the_programs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("raise SystemExit(7)")

    assert command("program.py", cwd=tmp_path).returncode == 7


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "There is no program to run."),
        (("-m",), "-m is no option."),
        (("--lr", "0.1"), "--lr is no option."),
        (("no.py",), "There is no program 'no.py'."),
        (
            ("enable", "x"),
            "enable takes no arguments. A program of that name is ./enable.",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    done = command(*words, cwd=tmp_path)

    assert done.returncode == 2
    assert done.stderr == (
        f"python -m popdist.sdk: error: {reason}\n"
        "python -m popdist.sdk: hint: python -m popdist.sdk --help lists the "
        "commands.\n"
    )


def test_an_environment_is_enabled_and_disabled(
    tmp_path: Path, venv: PythonEnvironment
) -> None:
    python, packages = venv
    program = tmp_path / "program.py"
    program.write_text(SHOW)

    def sdk(word: str) -> str:
        done = run(python, "-m", "popdist.sdk", word, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[0]

    where = f"in {packages.parents[2]}."
    on, off = f"enabled by {packages / NAME}", "disabled"
    assert sdk("status") == f"The stand-ins are {off} {where}"
    assert run(python, "program.py", cwd=tmp_path).returncode == 1
    assert sdk("enable") == sdk("enable") == f"The stand-ins are {on} {where}"
    assert sdk("status") == f"The stand-ins are {on} {where}"
    assert STAND_IN in run(python, "-I", "program.py", cwd=tmp_path).stdout
    assert run(python, "-S", "program.py", cwd=tmp_path).returncode == 1
    assert run(python, "program.py", cwd=tmp_path, POPDIST_SDK="no").returncode == 1
    assert sdk("disable") == sdk("disable") == f"The stand-ins are {off} {where}"
    assert run(python, "program.py", cwd=tmp_path).returncode == 1
    assert [path.name for path in packages.iterdir()] == ["ours.pth"]


def test_an_enabled_environment_without_popdist_has_no_stand_ins(
    tmp_path: Path, venv: PythonEnvironment
) -> None:
    python, packages = venv
    run(python, "-m", "popdist.sdk", "enable", cwd=tmp_path)
    ours = packages / "ours.pth"
    text = ours.read_text()
    ours.unlink()

    done = run(python, "-c", "import horovod", cwd=tmp_path)

    ours.write_text(text)
    run(python, "-m", "popdist.sdk", "disable", cwd=tmp_path)
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'horovod'\n")


def test_an_environment_that_cannot_be_written_to_is_named(
    tmp_path: Path, venv: PythonEnvironment
) -> None:
    python, packages = venv
    path = packages / NAME
    path.mkdir()

    for word in ("enable", "disable"):
        done = run(python, "-m", "popdist.sdk", word, cwd=tmp_path)

        assert done.returncode == 1
        assert done.stderr == (
            f"python -m popdist.sdk: error: {path} cannot be changed: Is a directory. "
            f"It is in the site-packages of {python}; make a virtual environment "
            "(python3 -m venv DIR), install poprun in it, and run this command with "
            "its Python.\n"
        )
    path.rmdir()
    assert [path.name for path in packages.iterdir()] == ["ours.pth"]
