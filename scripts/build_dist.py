"""Build the source archive and a wheel for each processor, and check them all.

python scripts/build_dist.py [FOLDER]

The wheels are compiled by zig's C compiler against an old glibc, so they run on every
distribution since 2014, and on processors other than this machine's. What PyPI and pip
would refuse, twine and auditwheel refuse here. Those for this machine's processor are
installed and run by every Python here that is supported, in environments without a
compiler.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PROCESSORS = ("x86_64", "aarch64")
GLIBC = "2.17"
# This environment has what a build asks for: the extra "dist".
BUILD = (sys.executable, "-m", "build", "--no-isolation")
PYTHONS = ("3.11", "3.12", "3.13")
# Two instances, the engine's core, and the stand-ins, without an MPI.
JOB = ("--mpirun", "local", "--offline-mode=yes", "-n", "2", "python", "-c")
PROGRAM = """
import numpy, popdist
total = popdist.instance_group().all_reduce(numpy.arange(70_000, dtype="float32"))
assert total[-1] == 2 * 69_999, total
import horovod
"""


def run(words: Sequence[str | Path], environ: Mapping[str, str] | None = None) -> None:
    """Run a command quietly; if it fails, print its output and exit."""
    done = subprocess.run(
        words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(map(str, words))}")


def build_source(folder: Path) -> Path:
    """Build the source archive from this checkout, and return its path."""
    run([*BUILD, "--sdist", "-o", folder, ROOT])
    [archive] = folder.glob("*.tar.gz")
    return archive


def build_wheel(source: Path, processor: str, folder: Path) -> Path:
    """Compile the source in a folder for a processor, and return the wheel's path."""
    # Debian's pyconfig.h includes one for the processor. For the stable ABI all those
    # of 64 bits are alike.
    headers = source / "headers"
    config = headers / f"{processor}-linux-gnu" / f"python{PYTHONS[0]}" / "pyconfig.h"
    config.parent.mkdir(parents=True)
    config.symlink_to(sysconfig.get_config_h_filename())
    compiler = f"{sys.executable} -m ziglang cc"
    environ = {
        **os.environ,
        "CC": f"{compiler} -target {processor}-linux-gnu.{GLIBC}",
        "CFLAGS": f"-g0 -I{headers}",
        "LDFLAGS": "-s",
    }
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{processor}"
    run(
        [
            *(*BUILD, "--wheel", "-o", folder, source),
            f"--config-setting=--build-option=--plat-name={tag}",
        ],
        environ,
    )
    [wheel] = folder.glob(f"*{tag}.whl")
    report = subprocess.check_output(
        [sys.executable, "-m", "auditwheel", "show", wheel],
        text=True,
        stderr=subprocess.STDOUT,
    )
    if f'"{tag}"' not in report:
        sys.exit(f"{report}\nfailed: {wheel.name} needs more than its tag says.")
    return wheel


def build(folder: Path) -> list[Path]:
    """Build and check all archives, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = build_source(folder)
    archives = [archive]
    for processor in PROCESSORS:
        # From the archive, and not from this checkout, which may hold more.
        with TemporaryDirectory() as place, tarfile.open(archive) as opened:
            opened.extractall(place, filter="data")
            [source] = Path(place).iterdir()
            archives.append(build_wheel(source, processor, folder))
    run([sys.executable, "-m", "twine", "check", "--strict", *archives])
    return archives


def find_python(version: str) -> str | None:
    """Return the Python of a version, if there is one in PATH that starts."""
    python = shutil.which(f"python{version}")
    # pyenv has commands for versions that are not chosen.
    works = python and subprocess.run([python, "-c", ""], stderr=subprocess.DEVNULL)
    return python if works and works.returncode == 0 else None


def install_and_run(python: str, wheel: Path, offline: bool) -> None:
    """Install a wheel with one Python, where there is no compiler, and run a job."""
    with TemporaryDirectory() as place:
        run([python, "-m", "venv", place])
        own, poprun = f"{place}/bin/python", f"{place}/bin/poprun"
        run(
            [
                *(own, "-m", "pip", "install", "--only-binary=:all:", wheel),
                *(["--no-deps", "--no-index"] if offline else []),
            ],
            {**os.environ, "PATH": f"{place}/bin"},
        )
        bare = {"PATH": f"{place}/bin", "HOME": place}
        if offline:
            bare["PYTHONPATH"] = sysconfig.get_path("platlib")
        run([own, poprun, *JOB, PROGRAM], bare)


def main() -> None:
    """Build all, then install and run what can run here."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--offline",
        action="store_true",
        help="Install into environments of this Python only, with the dependencies "
        "that this environment has.",
    )
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    for old in [*folder.glob("poprun-*.whl"), *folder.glob("poprun-*.tar.gz")]:
        old.unlink()
    archives = build(folder)
    for archive in archives:
        print(f"built {archive.name}", flush=True)
    [wheel] = [a for a in archives if a.name.endswith(f"{platform.machine()}.whl")]
    if options.offline:
        install_and_run(sys.executable, wheel, offline=True)
        print("installed and ran")
        return
    for version in PYTHONS:
        python = find_python(version)
        if python:
            install_and_run(python, wheel, offline=False)
        result = "installed and ran" if python else "not on this machine, not tried"
        print(f"Python {version}: {result}", flush=True)


if __name__ == "__main__":
    main()
