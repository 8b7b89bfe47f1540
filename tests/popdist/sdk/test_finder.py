import subprocess
import sys
from pathlib import Path

import pytest
from jobs import outputs
from jobs import run as run_job

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


NO_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
"""


@pytest.mark.parametrize("package", ["poptorch", "horovod.torch"])
def test_a_stand_in_without_its_framework_says_how_to_get_it(
    tmp_path: Path, package: str
) -> None:
    done = run(INSTALL + NO_TORCH + f"import {package}", tmp_path)

    assert done.stderr.endswith(
        f"ModuleNotFoundError: popdist's stand-in for {package} needs torch, which is "
        f"not installed in {sys.prefix}. Install it from poprun's source folder: pip "
        "install '.[torch]'\n"
    )


def test_an_installed_package_is_not_mixed_with_a_stand_ins_parts(
    tmp_path: Path,
) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").touch()

    done = run(INSTALL + "import horovod.torch", tmp_path)

    assert done.stderr.endswith("No module named 'horovod.torch'\n")


# --- What a further framework needs: one file, and one entry in the table.

ADAPTER = """
import frame
from popdist.replicated.members import Members
from popdist.replicated.shares import even_share

def share_of(samples):
    members = Members.meet("frame", 1, {"samples": samples})
    return frame.NAME, even_share(samples, members.first_replica, members.replicas)
"""
USE = "from frame.python import ipu; print(ipu.share_of(5)[0], ipu.__file__)"


@pytest.fixture
def registration(tmp_path: Path) -> str:
    """A program's first lines, after which there is a stand-in frame.python.ipu."""
    adapter = tmp_path / "submodules" / "frame" / "python" / "ipu"
    adapter.mkdir(parents=True)
    (adapter / "__init__.py").write_text(ADAPTER)
    return (
        "import sys\n"
        "from popdist.sdk import finder, install\n"
        f"sys.path.append({str(tmp_path / 'installed')!r})\n"
        f"finder.SUBMODULES = {str(tmp_path / 'submodules')!r}\n"
        "finder.STAND_INS['frame.python.ipu'] = 'frame'\n"
        "install()\n"
    )


@pytest.fixture
def framework(tmp_path: Path) -> Path:
    """The folder frame/python of an installed framework without a part for IPUs."""
    python = tmp_path / "installed" / "frame" / "python"
    python.mkdir(parents=True)
    (python / "__init__.py").touch()
    (python.parent / "__init__.py").write_text("NAME = 'a framework'\n")
    return python


@pytest.mark.usefixtures("framework")
def test_a_stand_in_may_be_a_part_of_an_installed_framework(
    tmp_path: Path, registration: str
) -> None:
    done = run(registration + USE, tmp_path)

    file = tmp_path / "submodules" / "frame" / "python" / "ipu" / "__init__.py"
    assert done.stdout == f"a framework {file}\n", done.stderr


@pytest.mark.usefixtures("framework")
def test_an_adapter_of_a_framework_has_what_all_of_them_share(
    registration: str,
) -> None:
    ended = run_job(
        2, registration + "import frame.python.ipu as ipu\nprint(ipu.share_of(5)[1])"
    )

    assert outputs(ended) == [
        "Share(offset=0, length=3, leftovers=0)",
        "Share(offset=3, length=2, leftovers=0)",
    ]


def test_a_part_of_an_installed_framework_wins(
    tmp_path: Path, registration: str, framework: Path
) -> None:
    (framework / "ipu.py").write_text("def share_of(samples): return ['its own']\n")

    done = run(registration + USE, tmp_path)

    assert done.stdout == f"its own {framework}/ipu.py\n", done.stderr


def test_without_the_framework_python_names_it(
    tmp_path: Path, registration: str
) -> None:
    done = run(registration + USE, tmp_path)

    assert done.stderr.endswith("No module named 'frame'\n")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            [],
            "frame.python.ipu is not installed: there is a stand-in for it.\n"
            "popdist's stand-in for frame.python.ipu needs frame, which is not "
            "installed in {prefix}. Install it from poprun's source folder: pip "
            "install '.[frame]'\n",
        ),
        (
            ["__init__.py"],
            "frame.python.ipu is not installed: there is a stand-in for it.\n",
        ),
        (
            ["__init__.py", "ipu.py"],
            "frame.python.ipu is installed, and imported from {folder}/ipu.py.\n",
        ),
    ],
)
def test_the_status_tells_of_a_part_of_a_framework(
    tmp_path: Path, registration: str, files: list[str], words: str
) -> None:
    folder = tmp_path / "installed" / "frame" / "python"
    for file in files:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
        (folder.parent / "__init__.py").touch()
    show = "from popdist.sdk import switch; print(switch.status())"

    done = run(registration + show, tmp_path)

    expected = words.format(prefix=sys.prefix, folder=folder)
    assert done.stdout.endswith(f"\n{expected}"), done.stdout + done.stderr
