import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

import poprun
from poprun import cli, dispatch
from poprun.errors import (
    OptionError,
    PoprunError,
    ProgramNotFoundError,
    TopologyError,
)
from poprun.options.programs import Program
from poprun.options.settings import Settings
from poprun.options.table import OPTIONS
from poprun.reach.own_host import versions


@dataclass
class Pipeline:
    """Stands where the job would be run, and remembers what it was asked for."""

    exit_code: int = 0
    jobs: list[tuple[Settings, list[Program]]] = field(default_factory=list)
    environ: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        settings: Settings,
        programs: Sequence[Program],
        guard: object,
        caller_environ: Mapping[str, str],
        recorder: object = None,
        trace: object = None,
    ) -> int:
        self.jobs.append((settings, list(programs)))
        self.environ = caller_environ
        return self.exit_code


@pytest.fixture(autouse=True)
def pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pipeline:
    fake = Pipeline()
    monkeypatch.setattr(poprun, "run", fake, raising=False)
    monkeypatch.setattr(dispatch, "start_guard", lambda environ: None)
    monkeypatch.chdir(tmp_path)
    return fake


def poprun_with(
    *words: str,
    environ: Mapping[str, str] | None = None,
    stdout: int | IO[bytes] = subprocess.PIPE,
) -> subprocess.CompletedProcess[bytes]:
    # Unbuffered, nothing is left to be written a second time when Python ends.
    clean = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONUNBUFFERED" and not name.startswith("POPRUN_")
    }
    clean["PYTHONPATH"] = str(Path(poprun.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-m", "poprun", *words],
        env=clean | dict(environ or {}),
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=200,
    )


def test_a_job_is_given_to_the_pipeline_and_its_exit_code_is_ours(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.exit_code = 7

    assert cli.main(["--num-replicas", "2", "x", "--help", "\udcff"], {}) == 7
    [(settings, programs)] = pipeline.jobs
    program = Program(argv=("x", "--help", "\udcff"), instances=range(0))
    assert (settings["num-replicas"], programs) == (2, [program])
    assert capsys.readouterr() == ("", "")


def test_variables_reach_the_job(pipeline: Pipeline) -> None:
    environ = {"POPRUN_NUM_REPLICAS": "3"}
    cli.main(["x"], environ)

    assert pipeline.jobs[0][0]["num-replicas"] == 3
    assert pipeline.environ is environ


def test_poprun_without_arguments_is_an_error_that_shows_its_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([], {}) == 2

    output, page = capsys.readouterr()
    examples = [line for line in page.splitlines() if line.startswith("  poprun ")]
    assert examples == [
        '  poprun -n 2 echo "Hello world!"',
        "  poprun --num-instances 4 --num-replicas 8 python3 train.py",
    ]
    assert page.count("\n") <= 25
    assert max(map(len, page.splitlines())) <= 60
    assert output == ""


@pytest.mark.parametrize("words", [["help"], ["--help", "topics"], ["-h", "topics"]])
def test_help_says_where_to_read_more(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words, {"PATH": "/nowhere"}) == 0

    page, err = capsys.readouterr()
    assert page.startswith("Commands:\n  poprun --help  ")
    assert "\nPages in /" in page
    assert err == ""


@pytest.mark.parametrize(
    "words", [["--", "help"], ["-n", "2", "help"], ["./help"], ["help", "me"]]
)
def test_a_program_may_be_called_help(pipeline: Pipeline, words: list[str]) -> None:
    cli.main(words, {})

    [(_, [program])] = pipeline.jobs
    assert list(program.argv) == words[-len(program.argv) :]


def entries(page: str) -> dict[str, str]:
    """Take the help apart: each option, with what stands in the second column."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in page.splitlines():
        if line.startswith("  -"):
            word = next(w.rstrip(",") for w in line.split() if w.startswith("--"))
            name = word.partition("[")[0]
            found[name] = [line[30:]] if line[28:30] == "  " else []
        elif line.startswith(" " * 30):
            found[name].append(line[30:])
    return {name: " ".join(lines) for name, lines in found.items()}


@pytest.mark.parametrize(
    "words", [["--help"], ["-h"], ["-v", "--hel", "x"], ["--help=", "--grace=x"]]
)
def test_help_shows_every_option_with_description_and_default(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words, {"COLUMNS": "80"}) == 0

    shown = entries(capsys.readouterr().out)
    assert list(shown) == [f"--{name}" for name in OPTIONS]
    assert shown["--help"] == "Show this page."
    assert shown["--num-replicas"] == (
        "How many copies of the model the job has in total. auto: one for each "
        "instance. [default: 1]"
    )
    assert shown["--vipu-server-timeout"].endswith(" [default: 10]")
    assert shown["--remove-partition"].endswith(" [default: yes]")
    assert shown["--only-output-from-instance"] == (
        "Show only the output of these instances, such as 0,4-7. first means instance "
        "0. failed means the instances that fail: the last 1 MiB of their output is "
        "shown when they do. Both can be combined, as in first,failed. Use this option "
        "with care, because it also hides the errors of the other instances. [default: "
        "all]"
    )
    for without_default in ("env", "dry-run", "quiet", "wait-for-ipus", "trace"):
        assert "[default" not in shown[f"--{without_default}"]


def test_help_is_as_wide_as_the_terminal_and_cuts_no_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    widths = {}
    for columns in ("20", "80", "1000", "wide"):
        cli.main(["--help"], {"COLUMNS": columns})
        lines = capsys.readouterr().out.splitlines()
        widths[columns] = max(map(len, lines))
        assert not any(line.endswith("-") for line in lines)

    assert widths["20"] <= 60 < widths["80"] <= 80 < widths["1000"] <= 100
    assert widths["wide"] <= 100


def test_help_needs_no_sense_in_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--num-replicas=many", "--import-config=no.yaml", "--help"]

    assert cli.main(words, {"POPRUN_GRACE": "soon"}) == 0
    assert capsys.readouterr().err == ""


def test_help_that_is_taken_back_is_none(pipeline: Pipeline) -> None:
    assert cli.main(["--help=no", "x"], {}) == 0
    assert len(pipeline.jobs) == 1


@pytest.mark.parametrize(
    "words",
    [["--version"], ["--version", "-v"], ["--version-format=text"], ["--version", "x"]],
)
def test_the_version_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    assert cli.main(words, {}) == 0
    assert capsys.readouterr() == ("poprun 0.1.0\n", "")
    assert pipeline.jobs == []


def test_the_full_version_names_all_that_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Mapping[str, str], str | None]] = []

    def collect(environ: Mapping[str, str], mpirun: str | None) -> dict[str, str]:
        calls.append((environ, mpirun))
        return {"poprun": "0.1.0", "Open MPI": "5.0.11"}

    monkeypatch.setattr(versions, "collect", collect)

    assert cli.main(["--version-format=full-text"], {"POPRUN_MPIRUN": "m"}) == 0
    assert capsys.readouterr().out == "poprun 0.1.0\nOpen MPI 5.0.11\n"
    assert cli.main(["--version", "--version-format", "full-json"], {}) == 0
    assert json.loads(capsys.readouterr().out) == {
        "poprun": "0.1.0",
        "Open MPI": "5.0.11",
    }
    assert calls == [({"POPRUN_MPIRUN": "m"}, "m"), ({}, None)]


def test_mpirun_answers_a_question_that_its_arguments_ask(
    pipeline: Pipeline, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        '#!/bin/sh\n[ $# = 1 ] || exit 9\necho "mpirun (Open MPI) 5.0.11"\n'
        '[ "$1" = --version ] || exit 3\n'
    )
    mpirun.chmod(0o755)
    environ = {"POPRUN_MPIRUN": str(mpirun), "PATH": os.defpath}

    words = ["--mpi-global-args=--tag-output", "--mpi-global-args=-V", "x"]
    assert cli.main(words, environ) == 3
    assert cli.main(["--mpi-global-args=--version"], environ) == 0
    assert cli.main(["--mpi-global-args=--version", "--mpirun=local"], environ) == 0
    version = "mpirun (Open MPI) 5.0.11\n"
    assert capfd.readouterr().out == f"{version}{version}poprun's own launcher 0.1.0\n"
    assert pipeline.jobs == []


def test_the_configuration_is_shown_and_nothing_started(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--show-config", "x"], {"POPRUN_NUM_REPLICAS": "4"}) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines][:3] == [
        ["--num-instances", "1", "default"],
        ["--num-replicas", "4", "POPRUN_NUM_REPLICAS"],
        ["--num-processes", "none", "default"],
    ]
    assert len(lines) == len(OPTIONS)
    assert pipeline.jobs == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--num-replcas", "4", "x"],
            "poprun: error: poprun has no option --num-replcas.\n"
            "poprun: hint: Did you mean --num-replicas?\n",
        ),
        (
            ["--num-replicas", "0", "x"],
            "poprun: error: --num-replicas is 0, but must be 1 or more.\n",
        ),
        (
            ["--instance-mpi-local-args=0:-x", "VAR=VALUE", "x"],
            "poprun: error: --instance-mpi-local-args is '0:-x', which ends in "
            "-x with no variable after it.\npoprun: hint: Put the whole value "
            'in quotes, as in --instance-mpi-local-args="0:-x NAME=VALUE".\n',
        ),
        (
            ["-v"],
            "poprun: error: The program to run is missing.\n"
            "poprun: hint: The program comes after the options: "
            "poprun [OPTIONS] PROGRAM.\n",
        ),
        (
            ["--vipu-partition", "python3"],
            "poprun: error: The program to run is missing.\n"
            "poprun: hint: --vipu-partition took 'python3' as its value.\n",
        ),
    ],
)
def test_a_wrong_command_line_ends_in_a_sentence_and_exit_code_2(
    words: list[str],
    message: str,
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(words, {}) == 2
    assert capsys.readouterr() == ("", message)
    assert pipeline.jobs == []


def test_an_error_of_the_pipeline_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: Pipeline, *arguments: object, **named: object) -> int:
        raise ProgramNotFoundError("There is no program x.")

    monkeypatch.setattr(Pipeline, "run", run)

    assert cli.main(["x"], {}) == 127
    assert capsys.readouterr().err == "poprun: error: There is no program x.\n"


def test_a_configuration_is_exported_before_the_job(pipeline: Pipeline) -> None:
    assert cli.main(["--num-replicas=2", "--export-config=c.yaml", "x"], {}) == 0
    assert Path("c.yaml").read_text() == "num-replicas: 2\n"
    assert len(pipeline.jobs) == 1


def test_a_configuration_is_exported_without_a_job(pipeline: Pipeline) -> None:
    assert cli.main(["--num-replicas=2", "--export-config=c.yaml"], {}) == 0
    assert cli.main(["--num-replicas=4", "--export-config=c.yaml"], {}) == 2
    assert Path("c.yaml").read_text() == "num-replicas: 2\n"

    words = ["--num-replicas=4", "--export-config=c.yaml", "--overwrite-config=yes"]
    assert cli.main(words, {}) == 0
    assert Path("c.yaml").read_text() == "num-replicas: 4\n"
    assert pipeline.jobs == []


# --- As a process.


def test_a_page_of_text_imports_nothing_that_a_job_needs() -> None:
    code = (
        "import sys; from poprun import cli; cli.main(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr)"
    )
    for words in (["--help"], ["--version"], []):
        loaded = modules_after(code, *words)
        assert "poprun.cli" in loaded
        assert not loaded & {"poprun.run", "click", "json", "subprocess", "yaml"}


def test_a_job_imports_nothing_that_it_may_not_need() -> None:
    code = "import sys, poprun.dispatch, poprun.run; print(*sys.modules)"
    loaded = modules_after(code)

    assert not loaded & {"click", "importlib.metadata", "numpy", "yaml"}


def modules_after(code: str, *words: str) -> set[str]:
    """Return the last line of a program that prints its modules."""
    process = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={"PYTHONPATH": str(Path(poprun.__file__).parent.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return set(process.stdout.split())


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["--show-config"]])
def test_a_locale_that_does_not_exist_is_no_matter(words: list[str]) -> None:
    process = poprun_with(*words, environ={"LC_ALL": "xx_XX.nowhere"})

    assert (process.returncode, process.stderr) == (0, b"")


def test_a_value_that_the_terminal_cannot_show_is_escaped() -> None:
    process = poprun_with(
        "--show-config",
        "--host=\u00e4",
        environ={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
    )

    assert process.returncode == 0
    assert rb"--host" in process.stdout
    assert rb"\xe4" in process.stdout


def test_a_reader_who_has_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)

    process = poprun_with("--help", stdout=writing)

    os.close(writing)
    assert (process.returncode, process.stderr) == (141, b"")


def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "wb") as full:
        process = poprun_with("--version", stdout=full)

    assert (process.returncode, process.stderr) == (
        74,
        b"poprun: error: The standard output cannot be written: "
        b"No space left on device.\n",
    )


def test_closed_streams_are_survived() -> None:
    closed = subprocess.run(
        ["sh", "-c", '"$0" -m poprun --version >&-', sys.executable],
        env={"PYTHONPATH": str(Path(poprun.__file__).parent.parent)},
        stderr=subprocess.PIPE,
    )
    silent = subprocess.run(
        ["sh", "-c", '"$0" -m poprun --no-such 2>&-', sys.executable],
        env={"PYTHONPATH": str(Path(poprun.__file__).parent.parent)},
        stdout=subprocess.PIPE,
    )

    assert (closed.returncode, closed.stderr) == (
        74,
        b"poprun: error: The standard output cannot be written: it is closed.\n",
    )
    assert (silent.returncode, silent.stdout) == (2, b"")


# --- Completion.


def completed(shell: str, line: str, position: int) -> list[str]:
    process = poprun_with(
        environ={
            "_POPRUN_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": line.split()[position] if shell == "fish" else str(position),
        }
    )
    assert (process.returncode, process.stderr) == (0, b"")
    return process.stdout.decode().splitlines()


def test_the_shells_are_offered_names_values_and_files() -> None:
    assert completed("bash", "poprun --num-r", 1) == ["plain,--num-replicas"]
    assert completed("bash", "poprun --offline-mode = y", 3) == ["plain,yes"]
    assert completed("bash", "poprun -v pyth", 2) == ["file,pyth"]
    assert completed("bash", "poprun --nonsense x", 2) == []
    assert completed("zsh", "poprun --process-placement d", 2) == [
        "plain",
        "disabled",
        "_",
    ]
    assert completed("fish", "poprun --ipus", 1) == [
        "plain,--ipus-per-replica\tHow many IPUs each replica gets."
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_each_shell_gets_a_script_to_load(shell: str) -> None:
    process = poprun_with(environ={"_POPRUN_COMPLETE": f"{shell}_source"})

    assert process.returncode == 0
    assert f"_POPRUN_COMPLETE={shell}_complete".encode() in process.stdout


AT_THE_CURSOR = """
COMP_WORDS=(poprun --process-placement = spread) COMP_CWORD=3
_poprun_completion poprun
printf "%s\\n" "${COMPREPLY[@]}"
"""


def test_bash_itself_completes(tmp_path: Path) -> None:
    script = poprun_with(environ={"_POPRUN_COMPLETE": "bash_source"}).stdout.decode()
    (tmp_path / "poprun").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m poprun "$@"\n'
    )
    (tmp_path / "poprun").chmod(0o755)

    process = subprocess.run(
        ["bash", "--norc", "-c", script + AT_THE_CURSOR],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(poprun.__file__).parent.parent),
        },
        capture_output=True,
        text=True,
    )

    assert (process.stdout, process.stderr) == ("spreadnuma\nspreadcores\n", "")


def test_a_shell_that_nobody_knows_is_refused() -> None:
    process = poprun_with(environ={"_POPRUN_COMPLETE": "cmd_source"})

    assert (process.returncode, process.stdout, process.stderr) == (
        2,
        b"",
        b"poprun: error: _POPRUN_COMPLETE is 'cmd_source', but must be bash_source, "
        b"zsh_source or fish_source.\n",
    )


# --- Hints at what may be the cause of an error.


@pytest.mark.parametrize(
    ("error", "words", "hints"),
    [
        (
            ProgramNotFoundError,
            ["--verbose", "2", "x"],
            ["To give --verbose a value, write --verbose=2."],
        ),
        (
            ProgramNotFoundError,
            ["--keep-going", "yes", "x"],
            ["To give --keep-going a value, write --keep-going=yes."],
        ),
        (ProgramNotFoundError, ["--num-replicas", "2", "2"], []),
        (ProgramNotFoundError, ["2", "--num-replicas", "2"], []),
        (
            TopologyError,
            ["--num-instances=2", "x", "--num-replicas", "2", "--lr=1"],
            [
                "--num-replicas comes after the program, so it is passed to the "
                "program. Write poprun's options before the program."
            ],
        ),
        (OptionError, ["--num-instances=2", "x", "--num-replicas", "2"], []),
    ],
)
def test_the_words_of_the_line_hint_at_what_was_meant(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pipeline: Pipeline,
    error: type[PoprunError],
    words: list[str],
    hints: list[str],
) -> None:
    def fail(*_: object, **named: object) -> int:
        raise error("No.")

    monkeypatch.setattr(pipeline, "run", fail)

    assert cli.main(words, {}) == error.exit_code
    assert capsys.readouterr().err.splitlines() == [
        "poprun: error: No.",
        *(f"poprun: hint: {hint}" for hint in hints),
    ]


def test_a_mistyped_variable_is_warned_about(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["x"], {"POPRUN_NUM_REPLCAS": "4"}) == 0
    assert capsys.readouterr().err == (
        "poprun: warning: The variable POPRUN_NUM_REPLCAS is not an option of poprun "
        "and has no effect. Did you mean POPRUN_NUM_REPLICAS?\n"
    )
    assert len(pipeline.jobs) == 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        pytest.param(
            ["-n", "0", "x"], "error: -n is 0, but must be 1 or more.\n", id="short"
        ),
        pytest.param(
            ["--np=0", "x"], "error: --np is 0, but must be 1 or more.\n", id="alias"
        ),
        pytest.param(
            ["--time", "x", "x"],
            "error: --time is 'x', but must be a number of seconds from 0 to "
            "999999999, such as 5 or 0.5, or a duration such as 90s, 5m or 1h30m.\n",
            id="prefix",
        ),
        pytest.param(
            ["-H"],
            "error: The value of -H is missing at the end of the line.\n"
            "poprun: hint: Write -H HOSTS.\n",
            id="no-value",
        ),
        pytest.param(
            ["-n", "2", "--num-instances", "2", "x"],
            "error: -n and --num-instances are both given (command line), but they "
            "exclude each other.\npoprun: hint: Leave one of them out.\n",
            id="two",
        ),
        pytest.param(
            ["-n", "2", "a", ":", "-q"],
            "error: -q comes after ':', but it applies to the whole job.\n"
            "poprun: hint: Write it before the first program. Only -n, "
            "--num-instances, --env and --cwd can follow ':'.\n",
            id="grammar",
        ),
        pytest.param(
            ["--offline", "1", "--log-dir", ""],
            "error: --log-dir is empty.\npoprun: hint: Give it a value, or leave it "
            "out. Perhaps a variable of your shell is not set.\n",
            id="empty",
        ),
    ],
)
def test_an_error_names_the_option_as_it_was_typed(
    words: list[str], error: str
) -> None:
    ran = poprun_with(*words)

    assert (ran.returncode, ran.stderr.decode()) == (2, f"poprun: {error}")


def test_what_is_found_later_names_the_option_as_it_was_typed(
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*arguments: object, **named: object) -> int:
        error = PoprunError("--hostfile out: it is full. No --hostfiles.")
        error.add_note("Leave --hostfile out.")
        raise error

    monkeypatch.setattr(pipeline, "run", refuse)

    assert cli.main(["--host-file", "out", "x"], {}) == 2
    assert capsys.readouterr().err == (
        "poprun: error: --host-file out: it is full. No --hostfiles.\n"
        "poprun: hint: Leave --host-file out.\n"
    )


def test_the_number_of_instances_is_named_as_it_was_typed(
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*arguments: object, **named: object) -> int:
        raise PoprunError("Ask for fewer by --num-instances.")

    monkeypatch.setattr(pipeline, "run", refuse)
    for words in (["-n", "4"], ["--num-processes=4"], ["--num-instances=4"]):
        assert cli.main([*words, "x"], {}) == 2
    assert capsys.readouterr().err == (
        "poprun: error: Ask for fewer by -n.\n"
        "poprun: error: Ask for fewer by --num-processes.\n"
        "poprun: error: Ask for fewer by --num-instances.\n"
    )


def test_a_bare_number_may_be_meant_as_that_of_instances(
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*arguments: object, **named: object) -> int:
        raise ProgramNotFoundError("There is no program '2'.")

    monkeypatch.setattr(pipeline, "run", refuse)

    assert cli.main(["2", "python", "t.py"], {}) == 127
    assert capsys.readouterr().err == (
        "poprun: error: There is no program '2'.\n"
        "poprun: hint: For 2 instances write: poprun -n 2 python t.py\n"
    )
