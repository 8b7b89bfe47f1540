"""What a program is called with and told, byte for byte, and who else can see it."""

import json
import os
import random
import shlex
import string
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import BIN, POPRUN, Poprun, wait_for

# Writes its words and its environment to a file for each instance.
TELL = """
import json, os, sys
told = {
    "words": [os.fsencode(word).hex() for word in sys.argv[1:]],
    "environment": {k.decode(): v.hex() for k, v in os.environb.items()},
}
with open("told." + os.environ["RANK"], "w") as file:
    json.dump(told, file)
"""


def job(instances: int, mpirun: str = "local") -> list[str]:
    number = str(instances)
    return ["--mpirun", mpirun, "--num-instances", number, "--num-replicas", number]


def words_of(poprun: Poprun, rank: int) -> list[bytes]:
    told = json.loads((poprun.directory / f"told.{rank}").read_text())
    return [bytes.fromhex(word) for word in told["words"]]


def environment_of(poprun: Poprun, rank: int) -> dict[str, bytes]:
    told = json.loads((poprun.directory / f"told.{rank}").read_text())
    return {k: bytes.fromhex(v) for k, v in told["environment"].items()}


# --- The program's words.

WORDS = [
    *(":", "--", "-x", "--help", "--num-instances", "9", "-np", "", " ", "$(id)", ";"),
    *("a\nb", "a\tb", "*", "~", "'", '"', "\\", "{}", "%s", "#", "é", "\udcff\udcfe"),
    "x" * 100_000,
]


@pytest.mark.mpi
def test_a_program_gets_its_words_as_they_were_given(
    poprun: Poprun, every_mpirun: str
) -> None:
    script = poprun.script("tell.py", TELL)
    ran = poprun(*job(2, every_mpirun), "--", "python", script, *WORDS)

    assert (ran.code, ran.stdout, ran.stderr) == (0, "", "")
    for rank in range(2):
        assert words_of(poprun, rank) == [os.fsencode(word) for word in WORDS]


# --- The program itself.


def programs(directory: Path) -> None:
    (directory / "directory").mkdir()
    for name, text, mode in (
        ("not executable", "#!/bin/sh\n", 0o644),
        ("train.py", "print()\n", 0o644),
        ("bad interpreter", "#!/no/such/thing\n", 0o755),
        ("no 'format'", "echo hello\n", 0o755),
    ):
        (directory / name).write_text(text)
        (directory / name).chmod(mode)


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        (
            "./missing",
            127,
            "There is no program './missing'.",
        ),
        (
            "",
            127,
            "The program's name is empty. Is there a variable in it that is not set?",
        ),
        (
            "two\nlines",
            127,
            "There is no program 'two\\nlines', neither on PATH nor in the current "
            "directory, {cwd}.",
        ),
        (
            "directory",
            126,
            "'directory' is a directory, not a program. Name a file in it.",
        ),
        (
            "./not executable",
            126,
            "'./not executable' is not executable; make it executable with: "
            "chmod +x './not executable'",
        ),
        (
            "./train.py",
            126,
            "./train.py is not executable; run it with: python ./train.py",
        ),
        (
            "./bad interpreter",
            127,
            "The first line of './bad interpreter' names the interpreter "
            "'/no/such/thing', which does not exist. Correct its first line, "
            "or name the interpreter before the program.",
        ),
        (
            "./no 'format'",
            126,
            "\"./no 'format'\" is neither a binary nor a script: its first "
            "line does not name an interpreter. Make '#!/bin/sh' or "
            "'#!/usr/bin/env python3' its first line, or run it with: sh "
            "\"./no 'format'\"",
        ),
    ],
)
def test_a_program_that_cannot_be_run_starts_nothing(
    poprun: Poprun, name: str, code: int, sentence: str
) -> None:
    programs(poprun.directory)
    mpirun = poprun.directory / "mpirun"
    mpirun.write_text(
        '#!/bin/sh\ntest "$*" = --version && echo "mpirun (Open MPI) 5.0.8" ||'
        f" touch {poprun.directory}/started\n"
    )
    mpirun.chmod(0o755)
    ran = poprun(*job(2, str(mpirun)), name, environ={"PATH": "/usr/bin"})

    said = sentence.format(cwd=repr(str(poprun.directory)))
    assert (ran.code, ran.stdout) == (code, "")
    assert ran.stderr == f"poprun: error: {said}\n"
    assert not (poprun.directory / "started").exists()


@pytest.mark.parametrize("name", ["with space", 'with"quote', "with\nnewline", "wíth"])
def test_a_program_may_have_any_name(poprun: Poprun, name: str) -> None:
    program = poprun.directory / name
    program.write_text("#!/bin/sh\necho $RANK\n")
    program.chmod(0o755)
    ran = poprun(*job(2), name)

    assert (ran.code, sorted(ran.stdout), ran.stderr) == (0, ["\n", "\n", "0", "1"], "")


# --- The environment.

# What every instance is told, whatever the MPI.
CONTRACT = {
    *("POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS"),
    *("POPDIST_NUM_IPUS_PER_REPLICA", "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE"),
    *("POPDIST_REPLICA_INDEX_OFFSET", "POPDIST_LOCAL_INSTANCE_INDEX"),
    *("POPDIST_EXECUTABLE_CACHE_PATH", "POPDIST_CONTRACT_VERSION"),
    *("POPDIST_JOB_ID", "POPDIST_CONTROL", "POPDIST_ARENA"),
    *("POPDIST_OFFLINE_MODE", "POPDIST_RESTART_COUNT", "POPDIST_ENDED_INSTANCES"),
    *("IPUOF_VIPU_API_PARTITION_ID", "IPUOF_VIPU_API_TIMEOUT"),
    *("IPUOF_VIPU_API_GCD_ID", "IPUOF_LOG_LEVEL", "POPLAR_TARGET_OPTIONS"),
    # Where stdout is no terminal.
    "PYTHONUNBUFFERED",
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "MPI4PY_LIBMPI"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}
# And how the names begin of what an MPI gives to its own processes.
GIFTS = ("OMPI_", "OPAL_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "MPI_LOCAL")


def odd_values(poprun: Poprun) -> dict[str, str]:
    """Return an environment in which little is as usual."""
    return {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "HOME": "/nowhere",
        "TMPDIR": str(poprun.directory),
        "LD_LIBRARY_PATH": "/no/such/directory",
        "POPRUN_TEST": poprun.environ["POPRUN_TEST"],
        "POPRUN_VIPU_INVENTORY": poprun.environ["POPRUN_VIPU_INVENTORY"],
        "NEWLINES": "\na\n\nb\n",
        "QUOTES": "'\"`\\",
        "SIGNS": "=,;:*?[]{}$HOME $(id) #!",
        "NOT_TEXT": "\udcff\udc80\x01\x1b[2J",
        "EMPTY": "",
        "LONG": "x" * (131_071 - len("LONG=")),
        "lower.case-and-dots": "1",
        "OMPI_MCA_btl_base_verbose": "0",
        "SLURM_JOB_ID": "17",
    }


@pytest.mark.mpi
def test_an_instance_has_what_its_caller_has_and_the_contract_and_no_more(
    poprun: Poprun, every_mpirun: str
) -> None:
    script = poprun.script("tell.py", TELL)
    outside = odd_values(poprun)
    ran = poprun(*job(2, every_mpirun), "python", script, env=outside)

    assert (ran.code, ran.stderr) == (0, "")
    for rank in range(2):
        inside = environment_of(poprun, rank)
        # Python sets this for itself, where there is no language.
        assert inside.pop("LC_CTYPE", b"C.UTF-8") == b"C.UTF-8"
        kept = {name: inside.pop(name, None) for name in outside}
        assert kept == {k: os.fsencode(v) for k, v in outside.items()}
        added = {name for name in inside if not name.startswith(GIFTS)}
        assert added == {name for name in CONTRACT if not name.startswith(GIFTS)}
        assert inside.keys() >= CONTRACT


@pytest.mark.mpi
def test_instances_are_told_who_they_are_in_the_words_of_all_launchers(
    poprun: Poprun, every_mpirun: str
) -> None:
    script = poprun.script("tell.py", TELL)
    assert poprun(*job(3, every_mpirun), "python", script).code == 0

    told = [environment_of(poprun, rank) for rank in range(3)]
    for rank, own in enumerate(told):
        number = str(rank).encode()
        assert own["RANK"] == own["LOCAL_RANK"] == number
        assert own["OMPI_COMM_WORLD_RANK"] == number
        assert own["OMPI_COMM_WORLD_LOCAL_RANK"] == number
        assert own["WORLD_SIZE"] == own["LOCAL_WORLD_SIZE"] == b"3"
        assert own["OMPI_COMM_WORLD_SIZE"] == b"3"
        assert own["OMPI_COMM_WORLD_LOCAL_SIZE"] == b"3"
        assert own["POPDIST_REPLICA_INDEX_OFFSET"] == number
        assert own["MASTER_ADDR"] == b"127.0.0.1"
        assert own["MASTER_PORT"] == told[0]["MASTER_PORT"]


@pytest.mark.mpi
def test_each_instance_gets_its_own_variables_and_no_others(
    poprun: Poprun, every_mpirun: str
) -> None:
    chance = random.Random(7)
    letters = string.printable + "é\u2028"
    own: list[dict[str, str]] = [
        {
            f"{chance.choice('ABCDE')}{number}_{rank * (number % 2)}": "".join(
                chance.choices(letters, k=chance.randrange(20))
            )
            for number in range(8)
        }
        for rank in range(3)
    ]
    options = []
    for rank, variables in enumerate(own):
        for name, value in variables.items():
            export = f"-x {shlex.quote(f'{name}={value}')}"
            options += ["--instance-mpi-local-args", f"{rank}:{export}"]
    script = poprun.script("tell.py", TELL)
    ran = poprun(*job(3, every_mpirun), *options, "python", script)

    assert (ran.code, ran.stderr) == (0, "")
    names = set().union(*own)
    for rank, variables in enumerate(own):
        told = environment_of(poprun, rank)
        assert {name: told[name] for name in names & told.keys()} == {
            name: os.fsencode(value) for name, value in variables.items()
        }


@pytest.mark.mpi
def test_what_a_user_asks_for_counts_more_than_what_he_has(
    poprun: Poprun, every_mpirun: str
) -> None:
    script = poprun.script("tell.py", TELL)
    exports = {"LEVEL": "a b", "OMPI_MCA_btl_base_verbose": "0", "OMP_NUM_THREADS": "7"}
    asked = " ".join(f"-x {shlex.quote(f'{k}={v}')}" for k, v in exports.items())
    ran = poprun(
        *job(2, every_mpirun),
        *("--mpi-global-args", f"{asked} -x HAS -x HAS_NOT"),
        *("python", script),
        environ={"LEVEL": "c", "OMPI_MCA_btl_base_verbose": "1", "HAS": "\n"},
    )

    assert (ran.code, ran.stderr) == (0, "")
    for rank in range(2):
        told = environment_of(poprun, rank)
        assert {name: told[name].decode() for name in exports} == exports
        assert told["HAS"] == b"\n"
        assert "HAS_NOT" not in told


@pytest.mark.parametrize("name", ["A-B", "1A", "", "PA TH"])
def test_what_is_no_name_is_refused(poprun: Poprun, name: str) -> None:
    export = shlex.quote(f"{name}=1")
    ran = poprun(*job(2), "--mpi-global-args", f"-x {export}", "touch", "started")

    assert ran.code == 2
    assert ran.stderr == (
        f"poprun: error: --mpi-global-args has -x '{name}=1', but {name!r} cannot be "
        "the name of a variable: a name consists of letters, digits and '_', and does "
        "not begin with a digit. Write -x NAME, -x NAME=VALUE, or -x NAME* for all "
        "names that begin with NAME.\n"
    )
    assert not (poprun.directory / "started").exists()


def test_two_jobs_at_once_have_ports_of_their_own(poprun: Poprun) -> None:
    script = poprun.script(
        "listen.py",
        "import os, socket, sys, time\n"
        "address = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
        "with socket.create_server(address):\n"
        "    open(sys.argv[1], 'w').close()\n"
        "    while not os.path.exists('go'):\n"
        "        time.sleep(0.01)\n",
    )
    started = [poprun.start(*job(1), "python", script, name) for name in ("one", "two")]
    for name in ("one", "two"):
        wait_for((poprun.directory / name).exists, f"job {name}")
    (poprun.directory / "go").touch()

    assert [process.communicate(timeout=200)[1] for process in started] == [b"", b""]
    assert [process.returncode for process in started] == [0, 0]


def test_instances_of_a_host_share_a_cache_that_goes_with_the_job(
    poprun: Poprun,
) -> None:
    script = poprun.script("tell.py", TELL + "os.listdir(sys.argv[1]); open('on', 'w')")
    cache = '"$POPDIST_EXECUTABLE_CACHE_PATH"'
    shell = f"touch {cache}/$RANK; python {script} {cache}"
    ran = poprun(*job(2), "sh", "-c", shell)

    paths = {
        environment_of(poprun, rank)["POPDIST_EXECUTABLE_CACHE_PATH"]
        for rank in range(2)
    }
    assert (ran.code, ran.stderr, len(paths)) == (0, "", 1)
    assert not os.path.exists(paths.pop())


def test_an_instance_alone_needs_no_cache(poprun: Poprun) -> None:
    script = poprun.script("tell.py", TELL)
    assert poprun(*job(1), "python", script).code == 0

    assert "POPDIST_EXECUTABLE_CACHE_PATH" not in environment_of(poprun, 0)


# --- Who else can see it.


def command_lines() -> Mapping[int, bytes]:
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
    return found


@pytest.mark.mpi
def test_words_and_values_are_on_nobody_elses_command_line(
    poprun: Poprun, every_mpirun: str
) -> None:
    secret, word = f"hunter2-{random.random()}", f"word-{random.random()}"
    # It starts no process: a shell's child has the shell's words until it calls exec.
    script = poprun.script(
        "wait.py",
        "import os, time; open('on.' + os.environ['RANK'], 'x'); time.sleep(600)",
    )
    process = poprun.start(
        *job(2, every_mpirun),
        *("-v", "python", script, word),
        environ={
            "POPRUN_MPI_GLOBAL_ARGS": f"-x SECRET={secret}",
            "POPRUN_INSTANCE_MPI_LOCAL_ARGS": f"1:-x OTHER={secret}",
            "PASSWORD": secret,
        },
    )
    for rank in range(2):
        wait_for((poprun.directory / f"on.{rank}").exists, f"instance {rank}")
    seen = command_lines()
    process.terminate()
    _, err = process.communicate(timeout=200)

    assert not [words for words in seen.values() if secret.encode() in words]
    knowing = [words for words in seen.values() if word.encode() in words]
    program = b"\0".join([b"python", script.encode(), word.encode()])
    assert sorted(words[-len(program) - 1 : -1] for words in knowing) == [program] * 3
    assert secret.encode() not in err


# --- Odd surroundings.


@pytest.mark.mpi
@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, id="almost-empty"),
        pytest.param({"PATH": "/usr/bin:/bin"}, id="no-home"),
        pytest.param({"HOME": "/", "LC_ALL": "xx_YY"}, id="no-such-language"),
        pytest.param({"HOME": "/", "LC_ALL": "C"}, id="C"),
        pytest.param({"HOME": "/", "PYTHONIOENCODING": "ascii"}, id="ascii"),
    ],
)
def test_the_guides_check_works_in_odd_surroundings(
    poprun: Poprun, openmpi5: str, environ: dict[str, str]
) -> None:
    mark = {"POPRUN_TEST": poprun.environ["POPRUN_TEST"]}
    ran = poprun(
        *job(2, openmpi5),
        *("--offline-mode=1", "echo", "Hello wörld!"),
        env={**environ, **mark},
    )

    assert (ran.code, ran.stdout, ran.stderr) == (0, "Hello wörld!\n" * 2, "")


@pytest.mark.mpi
def test_the_guides_check_works_without_an_environment(
    poprun: Poprun, every_mpirun: str
) -> None:
    mark = {"POPRUN_TEST": poprun.environ["POPRUN_TEST"]}
    ran = poprun(
        *job(2, every_mpirun), "--offline-mode=1", "echo", "Hello world!", env=mark
    )

    assert (ran.code, ran.stdout, ran.stderr) == (0, "Hello world!\n" * 2, "")


def test_a_language_that_python_sets_for_itself_is_not_handed_on(
    poprun: Poprun,
) -> None:
    mark = {"POPRUN_TEST": poprun.environ["POPRUN_TEST"]}
    bare = poprun(*job(1), "env", env=mark)
    given = poprun(*job(1), "env", env={**mark, "LC_CTYPE": "C"})

    assert "LC_CTYPE" not in bare.stdout
    assert "\nLC_CTYPE=C\n" in given.stdout


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="none"),
        pytest.param(("--mpi-local-args=--wdir .",), id="wdir"),
        pytest.param(("--executable-cache-path=c",), id="cache"),
        pytest.param(("--stdin=file",), id="stdin"),
        pytest.param(("--mpirun=./mpirun",), id="mpirun"),
        pytest.param(("--dry-run",), id="dry-run"),
    ],
)
def test_a_directory_that_is_gone_is_a_sentence(
    poprun: Poprun, options: tuple[str, ...]
) -> None:
    ran = subprocess.run(
        [
            *("sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh"),
            *(POPRUN, *job(2), *options, "true"),
        ],
        cwd=poprun.directory,
        env=poprun.environ,
        capture_output=True,
        timeout=200,
    )

    assert (ran.returncode, ran.stdout) == (125, b"")
    assert ran.stderr == (
        b"poprun: error: The current directory has been deleted, so no program can "
        b"start in it. Go to another one with cd.\n"
    )


def test_a_directory_that_may_not_be_entered_is_a_sentence(poprun: Poprun) -> None:
    script = 'mkdir closed && cd closed && chmod 0 ../closed && exec "$@"'
    as_user = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
    ran = subprocess.run(
        [*as_user, "sh", "-c", script, "sh", POPRUN, *job(2), "true"],
        cwd=poprun.directory,
        env=poprun.environ,
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert (ran.returncode, ran.stdout) == (125, "")
    assert ran.stderr == (
        "poprun: error: You may not enter the current directory, "
        f"{poprun.directory}/closed, so no program can start in it. Go to "
        "another one with cd.\n"
    )


def test_the_secrets_of_a_job_are_in_environments_only(
    poprun: Poprun, every_mpirun: str
) -> None:
    script = poprun.script(
        "secrets.py",
        "import os, pathlib\n"
        "names = ('POPDIST_CONTROL', 'POPDIST_ARENA')\n"
        "secrets = [os.environ[n].rpartition('/')[2].encode() for n in names]\n"
        "for words in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    try:\n"
        "        found = words.read_bytes()\n"
        "    except OSError:\n"
        "        continue\n"
        "    assert not any(secret in found for secret in secrets), found\n"
        "sockets = pathlib.Path('/proc/net/unix').read_bytes()\n"
        "address, _, key = os.environ['POPDIST_CONTROL'].encode().partition(b'/')\n"
        "assert address in sockets and key not in sockets\n",
    )
    ran = poprun(*job(2, every_mpirun), "python", script)

    assert (ran.code, ran.stderr) == (0, "")


# Looks at the command lines of all that this process comes from.
ANCESTORS = """
import os, pathlib
assert os.environ["POPDIST_NUM_TOTAL_REPLICAS"] == "2"
pid = os.getppid()
while pid > 1:
    process = pathlib.Path(f"/proc/{pid}")
    line = process.joinpath("cmdline").read_bytes()
    assert b"POPDIST_NUM_TOTAL_REPLICAS" not in line, line
    pid = int(process.joinpath("stat").read_text().rpartition(")")[2].split()[1])
"""


@pytest.mark.mpi
def test_the_variables_of_the_printed_command_are_not_given_to_mpirun(
    poprun: Poprun, every_mpirun: str
) -> None:
    script = poprun.script("ancestors.py", ANCESTORS)

    ran = poprun("-v", *job(2, every_mpirun), "python", script)

    assert ran.code == 0, ran.stderr
    [printed] = [line for line in ran.stderr.splitlines() if "Running command" in line]
    assert printed.count("'POPDIST_NUM_TOTAL_REPLICAS") == 2


# --- Directories and programs of single instances.


def program_of(directory: Path, name: str) -> None:
    directory.mkdir()
    script = directory / "prog"
    script.write_text(f"#!/bin/sh\necho {name} $(pwd -P) $PWD\n")
    script.chmod(0o755)


VALUES = {"EMPTY": "", "ODD": "a=b 'c' \"\n\té:", "LONG": "x" * 100_000}


@pytest.mark.mpi
def test_variables_and_the_directory_of_options_reach_the_instances(
    poprun: Poprun, every_mpirun: str
) -> None:
    script = poprun.script("tell.py", TELL)
    (poprun.directory / "a folder").mkdir()

    ran = poprun(
        *job(2, every_mpirun),
        *(f"--env={name}={value}" for name, value in VALUES.items()),
        *("--env", "PASSED", "--env", "1:ODD=one", "--cwd", "a folder"),
        *("python", str(poprun.directory / script)),
        environ={"PASSED": "on"},
    )

    assert (ran.code, ran.stdout, ran.stderr) == (0, "", "")
    for rank, odd in ((0, VALUES["ODD"]), (1, "one")):
        told = json.loads((poprun.directory / f"a folder/told.{rank}").read_text())
        found = {k: bytes.fromhex(v).decode() for k, v in told["environment"].items()}
        expected = {**VALUES, "ODD": odd, "PASSED": "on"}
        assert {name: found[name] for name in expected} == expected
        assert found["PWD"] == os.path.realpath(poprun.directory / "a folder")


@pytest.mark.mpi
def test_each_instance_may_have_a_directory_of_its_own(
    poprun: Poprun, every_mpirun: str
) -> None:
    (poprun.directory / "one").mkdir()
    here = os.path.realpath(poprun.directory)

    ran = poprun(
        *job(2, every_mpirun),
        "--instance-mpi-local-args=1:--wdir one",
        *("sh", "-c", "echo $RANK $(pwd -P)"),
    )

    assert (ran.code, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == [f"0 {here}", f"1 {here}/one"]


def test_the_path_of_an_instance_says_which_program_it_runs(poprun: Poprun) -> None:
    for name in ("a", "b"):
        program_of(poprun.directory / name, name)
    path = os.environ["PATH"]

    ran = poprun(
        *job(2),
        f"--mpi-local-args=-x PATH={poprun.directory}/a:{path}",
        f"--instance-mpi-local-args=1:-x PATH={poprun.directory}/b:{path}",
        "prog",
    )

    assert (ran.code, ran.stderr) == (0, "")
    assert sorted(line[0] for line in ran.stdout.splitlines()) == ["a", "b"]


def test_a_program_is_looked_for_where_its_instance_runs(poprun: Poprun) -> None:
    for name in ("a", "b"):
        program_of(poprun.directory / name, name)
    here = os.path.realpath(poprun.directory)

    ran = poprun(
        *job(2),
        "--mpi-local-args=--wdir a",
        "--instance-mpi-local-args=1:--wdir b",
        "./prog",
    )

    assert (ran.code, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == [
        f"a {here}/a {poprun.directory}/a",
        f"b {here}/b {poprun.directory}/b",
    ]


def test_a_directory_for_executables_is_made_and_kept(poprun: Poprun) -> None:
    ran = poprun(
        *job(2),
        "--executable-cache-path=a/b",
        *("sh", "-c", "cd / && test -d $POPDIST_EXECUTABLE_CACHE_PATH"),
    )

    assert (ran.code, ran.stderr) == (0, "")
    assert (poprun.directory / "a/b").is_dir()


@pytest.mark.parametrize(
    ("path", "reason"),
    [("file", "File exists"), ("file/below", "Not a directory")],
)
def test_a_directory_for_executables_that_cannot_be_used_starts_nothing(
    poprun: Poprun, path: str, reason: str
) -> None:
    (poprun.directory / "file").touch()

    ran = poprun(*job(1), f"--executable-cache-path={path}", "touch", "started")

    assert (ran.code, ran.stderr) == (
        2,
        "poprun: error: --executable-cache-path "
        f"'{poprun.directory}/{path}' cannot be used: {reason}. Name a "
        "directory in which you may write.\n",
    )
    assert not (poprun.directory / "started").exists()
