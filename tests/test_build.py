"""How setup.py builds, asked through the hooks that pip calls, with a core of one file.

That keeps each build short, and apart from the core that these tests run with.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from poprun import __version__

ROOT = Path(__file__).parent.parent
CORE = Path("popdist", "engine", "core")
SOURCES = CORE / "python"
KERNELS = Path("popdist", "tensorflow", "tensors", "kernels")
MODULE = """\
#include <Python.h>
#include <stdio.h>
#include "python/core.h"

static struct PyModuleDef core = {PyModuleDef_HEAD_INIT, .m_name = "_core"};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModule_Create(&core);
}
"""
OPERATIONS = """\
#include <Python.h>
static struct PyModuleDef kernels = {PyModuleDef_HEAD_INIT, .m_name = "_kernels"};
PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&kernels); }
"""
# What -Wconversion warns of.
NARROWING = "int narrowed(long wide);\nint narrowed(long wide) { return wide; }\n"
# A compiler that is real but for the folders in which it is told to look for headers.
WITHOUT_FOLDERS = """\
#!/bin/sh
for word; do
    shift
    case $word in -I*) ;; *) set -- "$@" "$word" ;; esac
done
exec cc "$@"
"""
Build = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project's own build files around a core of one function."""
    folder = tmp_path / "project"
    (folder / SOURCES).mkdir(parents=True)
    (folder / KERNELS).mkdir(parents=True)
    (folder / "poprun").mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", CORE / "flags"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copy(ROOT / "poprun" / "__init__.py", folder / "poprun")
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "poprun.1", folder / "docs")
    (folder / "popdist" / "__init__.py").touch()
    (folder / "popdist" / "engine" / "__init__.py").touch()
    (folder / "popdist" / "engine" / "_core.pyi").touch()
    (folder / SOURCES / "core.h").write_text("int narrowed(long wide);\n")
    (folder / SOURCES / "module.c").write_text(MODULE)
    (folder / KERNELS / "kernels.c").write_text(OPERATIONS)
    return folder


@pytest.fixture
def build(project: Path) -> Build:
    def run(hook: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        program = f"from setuptools import build_meta; build_meta.build_{hook}('dist')"
        ours = ("CC", "CFLAGS", "CPATH", "CPPFLAGS", "LDFLAGS", "POPRUN_CORE_CFLAGS")
        kept = {k: v for k, v in os.environ.items() if k not in ours}
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=project,
            env=kept | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    return run


def test_one_wheel_serves_every_python_from_3_11_on(
    build: Build, project: Path
) -> None:
    built = build("wheel")

    assert built.returncode == 0, built.stdout
    assert [path.name for path in (project / "dist").iterdir()] == [
        f"poprun-{__version__}-cp311-abi3-linux_{platform.machine()}.whl"
    ]


def test_the_wheel_holds_the_core_and_none_of_its_sources(
    build: Build, project: Path
) -> None:
    built = build("wheel")

    assert built.returncode == 0, built.stdout
    (wheel,) = (project / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    files = {name for name in names if "engine/" in name}
    shared = {name.partition("/share/")[2] for name in names}
    assert shared == {"", "man/man1/poprun.1", "doc/poprun/README.md"}
    assert files == {
        "popdist/engine/__init__.py",
        "popdist/engine/_core.abi3.so",
        "popdist/engine/_core.pyi",
    }


def test_the_source_archive_holds_all_that_the_core_is_built_from(
    build: Build, project: Path
) -> None:
    built = build("sdist")

    assert built.returncode == 0, built.stdout
    with tarfile.open(project / "dist" / f"poprun-{__version__}.tar.gz") as archive:
        files = {
            m.name.partition("core/")[2] for m in archive.getmembers() if m.isfile()
        }
    assert files - {""} == {"python/core.h", "flags", "python/module.c"}


@pytest.mark.parametrize("hook", ["wheel", "editable"])
def test_without_a_compiler_the_install_ends_in_one_sentence(
    build: Build, project: Path, hook: str
) -> None:
    built = build(hook, PATH=str(project), CC="gcc")

    assert built.returncode == 1
    assert "Traceback" not in built.stdout
    assert built.stdout.splitlines()[-1] == (
        "error: poprun compiles its engine when it is installed, but there is no C "
        "compiler (gcc is not in PATH): on Debian and Ubuntu, apt-get install gcc "
        "libc6-dev python3-dev brings all that it takes."
    )


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ("", f"Python.h is missing, a header of Python 3.{sys.version_info.minor}"),
        ("-nostdinc", "stdio.h is missing, a header of the C library"),
    ],
)
def test_without_headers_the_install_ends_in_one_sentence(
    build: Build, project: Path, options: str, missing: str
) -> None:
    compiler = project / "compiler"
    compiler.write_text(WITHOUT_FOLDERS)
    compiler.chmod(0o755)
    built = build("wheel", CC=f"{compiler} {options}")

    assert built.returncode == 1
    assert "Traceback" not in built.stdout
    assert built.stdout.splitlines()[-1] == (
        f"error: poprun compiles its engine when it is installed, but {missing}: on "
        "Debian and Ubuntu, apt-get install gcc libc6-dev python3-dev brings all that "
        "it takes."
    )


def test_an_error_in_the_core_is_left_to_the_compiler_to_tell(
    build: Build, project: Path
) -> None:
    with (project / SOURCES / "module.c").open("a") as module:
        module.write("int broken(void) { return missing; }\n")
    built = build("wheel")

    assert built.returncode == 1
    assert "missing" in built.stdout
    assert "apt-get" not in built.stdout


def test_a_warning_is_an_error_only_where_that_is_asked_for(
    build: Build, project: Path
) -> None:
    (project / SOURCES / "narrowing.c").write_text(NARROWING)
    strict = build("wheel", POPRUN_CORE_CFLAGS="-Werror")
    lenient = build("wheel")

    assert "-Werror=conversion" in strict.stdout
    assert (strict.returncode, lenient.returncode) == (1, 0), lenient.stdout
