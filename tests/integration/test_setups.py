"""What the pages about CI, containers, notebooks, VS Code and Kubernetes set up.

In them a block ```LANGUAGE file=NAME is a file, and a block ```python cell a cell of a
notebook, with what it prints in the block after it. Left out is what needs the
services themselves: the runners, a cluster, an editor.
"""

import doctest
import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Poprun

from poprun.options import grammar
from tests.debug_adapter import DebugAdapter, free_ports
from tests.notebooks import Notebook

CELL = re.compile(r"^```python cell\n(.*?)^```\n\n^```\n(.*?)^```", re.S | re.M)
COLOUR = re.compile(r"\x1b\[[0-9;]*m|\r")

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(1800)]


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page of the documentation shows."""
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"^ *```\w+ file=(\S+)\n(.*?)^ *```", text, re.S | re.M)
    assert blocks
    return dict(blocks)


def run(poprun: Poprun, command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-ec", command],
        cwd=poprun.directory,
        env=poprun.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture
def notebook(poprun: Poprun) -> Iterator[Notebook]:
    # As a user has it.
    del poprun.environ["POPRUN_SUMMARY"]
    opened = Notebook(poprun)
    yield opened
    opened.close()


def test_every_cell_prints_what_the_page_shows(
    poprun: Poprun, notebook: Notebook
) -> None:
    cells = CELL.findall((ROOT / "docs" / "notebooks.md").read_text())
    assert len(cells) > 4

    for cell, expected in cells:
        printed = COLOUR.sub("", notebook.output(notebook.run(cell)))

        same = doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)
        assert same, f"{cell}\n{printed}"


def steps_of_github(jobs: Any) -> Iterator[str]:
    for job in jobs.values():
        assert job["timeout-minutes"] > 0
        yield from (step["run"] for step in job["steps"] if "run" in step)


def steps_of_gitlab(jobs: Any) -> Iterator[str]:
    for job in jobs.values():
        yield from (*job["before_script"], *job["script"])


@pytest.mark.parametrize(
    ("name", "count"), [("github.yml", 4), ("gitlab.yml", 6)], ids=["github", "gitlab"]
)
@pytest.mark.parametrize("fails", [False, True])
def test_the_commands_of_ci_run(
    poprun: Poprun, name: str, count: int, fails: bool
) -> None:
    files = files_of("continuous_integration.md")
    poprun.script("test_ranks.py", files["test_ranks.py"])
    poprun.script("train.py", f"raise SystemExit({3 * fails})")
    setup = yaml.safe_load(files[name])
    steps = list(
        steps_of_github(setup["jobs"]) if "jobs" in setup else steps_of_gitlab(setup)
    )
    assert len(steps) == count
    # What gets poprun from elsewhere.
    commands = [s for s in steps if not re.match(r"pip |git ", s)]

    ended = {command: run(poprun, command) for command in commands}

    codes = [one.returncode for one in ended.values()]
    trained = next(i for i, s in enumerate(commands) if "python train.py" in s)
    assert codes[trained] == 3 * fails, ended
    assert codes[:trained] + codes[trained + 1 :] == [0] * (len(codes) - 1), ended
    assert json.loads((poprun.directory / "result.json").read_text())
    assert (poprun.directory / "logs" / "latest").is_dir()
    cause = ended[commands[-1]].stdout
    if name == "github.yml" and fails:
        assert re.match(
            r"::error title=poprun:: Instance [01] on localhost exited with code 3\.",
            cause,
        )


def test_what_a_pod_runs_is_a_command_line_of_poprun(poprun: Poprun) -> None:
    job = yaml.safe_load(files_of("kubernetes.md")["job.yml"])
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (entry_point,) = re.findall(
        r"^ENTRYPOINT (.*)$", (ROOT / "examples/Dockerfile").read_text(), re.M
    )
    poprun.script("train.py", "raise SystemExit(3)")
    words = [*json.loads(entry_point), *container["args"]]
    environ = " ".join(f"{one['name']}={one['value']}" for one in container["env"])

    ended = run(poprun, f"{environ} {shlex.join(words)}")

    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert ended.returncode == 3, ended
    assert re.search(r"poprun: error: .* exited with code 3\.\n\Z", ended.stderr)
    # As Kubernetes demands it.
    assert pod["restartPolicy"] == "Never"
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert rule["onExitCodes"]["values"] == [2, 126, 127]
    names = [volume["name"] for volume in pod["volumes"]]
    assert [mount["name"] for mount in container["volumeMounts"]] == names
    grace = int(container["args"][container["args"].index("--grace") + 1])
    assert pod["terminationGracePeriodSeconds"] > grace
    grammar.parse(container["args"])


@pytest.mark.parametrize("command", ["debug.sh", "debug_one.sh", "tasks.json"])
def test_a_debugger_stops_the_instances_that_wait_for_it(
    poprun: Poprun, command: str
) -> None:
    pytest.importorskip("debugpy")
    files = files_of("vscode.md")
    launch = json.loads(files["launch.json"])
    ports = [one["connect"]["port"] for one in launch["configurations"]]
    assert ports == [5678, 5679]
    assert launch["compounds"][0]["configurations"] == [
        one["name"] for one in launch["configurations"]
    ]
    program = poprun.script("train.py", "import os\n\ntotal = 0\ntotal += 1\n")
    text = files[command]
    if command == "tasks.json":
        (task,) = json.loads(text)["tasks"]
        text = task["command"].replace("${relativeFile}", "train.py")
    first = free_ports(2)
    assert "5678" in text
    process = subprocess.Popen(
        ["bash", "-ec", text.replace("5678", str(first))],
        cwd=poprun.directory,
        env={**poprun.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    poprun.started.append(process)
    path = str(poprun.directory / program)

    for port in [first] if command == "debug_one.sh" else [first, first + 1]:
        with DebugAdapter(port) as debugger:
            debugger.attach(path, line=4)
            assert debugger.evaluate("total, __name__") == "(0, '__main__')"
            debugger.go_on()
    out, _ = process.communicate(timeout=200)

    assert process.returncode == 0, out


def build_stage(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile's first stage."""
    stage = text.split("\nFROM ")[1]
    for line in stage.splitlines()[1:]:
        if line and not line.startswith("#"):
            instruction, rest = line.split(maxsplit=1)
            yield instruction, rest


def test_the_steps_of_the_dockerfile_make_a_poprun_that_works(
    poprun: Poprun, tmp_path: Path
) -> None:
    """Without its packages of Debian, and with those of Python that this one has."""
    text = (ROOT / "examples" / "Dockerfile").read_text()
    source, environment = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    packages_here = sysconfig.get_path("purelib")
    environ = {
        **poprun.environ,
        "EXTRAS": "openmpi",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        # A new environment has an older setuptools than the build needs.
        "PYTHONPATH": packages_here,
    }
    ran = []

    for instruction, rest in build_stage(text):
        if instruction == "COPY":
            *names, to = rest.split()
            for name in names:
                place = source / (name if to == name else Path(to, Path(name).name))
                place.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / name).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__", "*.so")
                    shutil.copytree(ROOT / name, place, ignore=ignored)
                else:
                    shutil.copy(ROOT / name, place)
        elif instruction == "RUN" and "apt-get" not in rest:
            command = rest.replace("/opt/poprun", str(environment))
            subprocess.run(
                ["bash", "-ec", command], cwd=source, env=environ, check=True
            )
            ran.append(command)
            (packages,) = environment.glob("lib/python*/site-packages")
            (packages / "these.pth").write_text(packages_here)
    words = [str(environment / "bin" / "poprun"), "-n", "2", "--mpirun", "local"]
    program = "import os, popdist; print(os.path.dirname(popdist.__file__))"
    ended = subprocess.run(
        [*words, str(environment / "bin" / "python"), "-c", program],
        cwd=poprun.directory,
        env=poprun.environ,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert len(ran) == 2
    assert ended.returncode == 0, ended
    assert ended.stdout == f"{packages / 'popdist'}\n" * 2


IMAGE = "docker.io/library/python:3.12-slim"


def engine_with_the_image() -> str | None:
    """Return a command that builds images and has the Dockerfile's base already."""
    for name in ("docker", "podman"):
        if shutil.which(name):
            inspect = [name, "image", "inspect", IMAGE]
            if (
                subprocess.run(inspect, capture_output=True, check=False).returncode
                == 0
            ):
                return name
    return None


def test_the_dockerfile_makes_an_image() -> None:
    engine = engine_with_the_image()
    if engine is None:
        pytest.skip(f"needs docker or podman, and its image {IMAGE}")
    tag = f"poprun-test-{os.getpid()}"
    build = ["build", "-f", "examples/Dockerfile", "-t", tag, "."]

    subprocess.run([engine, *build], cwd=ROOT, check=True, timeout=1500)
    try:
        ended = subprocess.run(
            [engine, "run", "--rm", tag, "-n", "2", "sh", "-c", "echo $RANK; exit 7"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        subprocess.run([engine, "rmi", "-f", tag], check=True, capture_output=True)

    assert ended.returncode == 7, ended
    assert set(ended.stdout.split()) <= {"0", "1"}
    assert "exited with code 7." in ended.stderr.splitlines()[-1]
