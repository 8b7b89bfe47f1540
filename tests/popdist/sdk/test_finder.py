import subprocess
import sys
from pathlib import Path

import pytest

from popdist.sdk.finder import PACKAGES


def run(code: str, cwd: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PYTHONDONTWRITEBYTECODE": "1", **environ},
        capture_output=True,
        text=True,
    )


INSTALL = "import popdist.sdk; popdist.sdk.install()\n"
FOUND = "import importlib.util as u; print(u.find_spec('horovod').origin)"


def test_a_program_that_does_not_ask_finds_no_stand_in(tmp_path: Path) -> None:
    done = run("import popdist, popdist.sdk\nimport horovod", tmp_path)

    assert done.stderr.endswith("No module named 'horovod'\n")


def test_a_stand_in_is_found_after_install(tmp_path: Path) -> None:
    done = run(INSTALL + FOUND, tmp_path)

    assert done.stdout == f"{PACKAGES}/horovod/__init__.py\n"


def test_an_installed_package_wins(tmp_path: Path) -> None:
    package = tmp_path / "elsewhere" / "horovod"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()

    done = run(INSTALL + FOUND, tmp_path, PYTHONPATH=str(package.parent))

    assert done.stdout == f"{package}/__init__.py\n"


def test_a_package_that_another_finder_finds_wins(tmp_path: Path) -> None:
    (tmp_path / "ours.py").touch()
    behind = (
        "import sys, importlib.util as u\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'horovod':\n"
        "            return u.spec_from_file_location(name, 'ours.py')\n"
        "sys.meta_path.append(Finder())\n"
    )

    done = run(INSTALL + behind + FOUND, tmp_path)

    assert done.stdout == f"{tmp_path}/ours.py\n", done.stderr


def test_a_folder_beside_the_script_does_not_hide_a_stand_in(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()

    done = run(INSTALL + FOUND, tmp_path)

    assert done.stdout == f"{PACKAGES}/horovod/__init__.py\n"


def test_the_environment_can_forbid_stand_ins(tmp_path: Path) -> None:
    done = run(INSTALL + "import horovod", tmp_path, POPDIST_SDK="no")

    assert done.stderr.endswith("No module named 'horovod'\n")


def test_a_process_that_is_spawned_finds_the_stand_in_too(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import multiprocessing as mp, sys\n"
        "import horovod\n"
        "def show(): print(horovod.__file__)\n"
        "if __name__ == '__main__':\n"
        "    process = mp.get_context('spawn').Process(target=show)\n"
        "    process.start(); process.join(); sys.exit(process.exitcode)\n"
    )
    program = (
        INSTALL + "import runpy; runpy.run_path('program.py', run_name='__main__')"
    )

    done = run(program, tmp_path)

    assert done.stdout == f"{PACKAGES}/horovod/__init__.py\n", done.stderr


@pytest.mark.parametrize("level", ["INFO", "WARNING"])
def test_a_stand_in_says_once_what_it_is(tmp_path: Path, level: str) -> None:
    log = f"import logging; logging.basicConfig(level='{level}')\n"
    again = "import horovod, sys; del sys.modules['horovod']; import horovod"

    done = run(INSTALL + log + again, tmp_path)

    count = done.stderr.count("horovod is popdist's stand-in")
    assert count == (1 if level == "INFO" else 0), done.stderr


@pytest.mark.parametrize("package", ["poptorch", "horovod.torch"])
def test_a_stand_in_without_torch_says_how_to_get_it(
    tmp_path: Path, package: str
) -> None:
    no_torch = (
        "import sys; sys.modules['torch'] = None\nsys.modules.pop('horovod', None)\n"
    )

    done = run(INSTALL + no_torch + "import horovod.torch", tmp_path)

    assert "pip install '.[torch]'" in done.stderr, done.stderr
