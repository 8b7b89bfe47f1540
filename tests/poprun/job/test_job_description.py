import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from plans import FACTS, MPI, make_request, planned, running

from poprun.errors import OptionError
from poprun.helpers.end_actions import RemovePath
from poprun.job import job_description
from poprun.job.values import Job

# What the user has, and what an outer poprun and its MPI have left.
from poprun.mpirun.environment import without_outer_poprun
from poprun.mpirun.hydra import Hydra
from poprun.mpirun.openmpi import OpenMpi4, OpenMpi5
from poprun.mpirun.values import Mpi
from poprun.plan.host_facts import HostFacts
from poprun.plan.placement import Binding
from poprun.plan.topology import Topology
from poprun.plan.values import Plan
from poprun.wire import protocol

USERS = {
    "PATH": "/usr/bin",
    "HOME": "/home/u",
    "NON_UTF8": "caf\udce9",
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "POPDIST_TIMEOUT": "30",
    "POPDIST_LOG_LEVEL": "debug",
    "SLURM_JOB_ID": "7",
}
LEFT = {
    "POPDIST_NUM_TOTAL_REPLICAS": "64",
    "POPDIST_NUM_IPUS_PER_REPLICA": "4",
    "POPDIST_NUM_LOCAL_REPLICAS": "8",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
    "POPDIST_REPLICA_INDEX_OFFSET": "8",
    "POPDIST_LOCAL_INSTANCE_INDEX": "1",
    "POPDIST_NODE_DEVICE_ID": "64",
    "POPDIST_EXECUTABLE_CACHE_PATH": "/outer",
    "POPDIST_CONTRACT_VERSION": "0",
    "POPDIST_JOB_ID": "outer",
    "POPDIST_CONTROL": "@poprun-outer",
    "POPDIST_OFFLINE_MODE": "0",
    "POPDIST_ARENA": "outer-0",
    "POPDIST_RESTART_COUNT": "3",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "8",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "outer",
    "OPAL_PREFIX": "/outer/mpi",
    "PMI_RANK": "1",
    "PMI_FD": "9",
    "HYDI_CONTROL_FD": "8",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

INTERPRETER = "/opt/poprun/interpreter"
HERE = replace(
    FACTS,
    cwd="/home/u",
    interpreter=INTERPRETER,
    page_bytes=os.sysconf("SC_PAGE_SIZE"),
    stack_limit=8 << 20,
)
LIMITS = (1024, 4096)
SETTINGS = {
    "grace": 2.5,
    "keep-going": True,
    "timeout": None,
    "start-timeout": 60,
    "trace": None,
}


def plan(
    mpi: type[Mpi] = OpenMpi5,
    cache: str | None = None,
    binding: Binding | None = None,
    facts: HostFacts = HERE,
    **exports: str,
) -> Plan:
    request = make_request(
        Topology(num_instances=2, num_replicas=4),
        facts=[facts],
        mpi=mpi(path=MPI.path, version=MPI.version),
        bindings=[binding or Binding()] * 2,
        cache_path=cache,
        cache_is_temporary=True,
        exports=exports,
    )
    return planned(request)


def job(
    of_plan: Plan | None = None,
    environ: dict[str, str] | None = None,
    program: tuple[str, ...] = ("train.py", "--lr", "1"),
) -> Job:
    return job_description.make_job(
        running(of_plan or plan(), program),
        SETTINGS,  # type: ignore[arg-type]
        ["/bin/train.py"] * 2,
        {"PATH": "/usr/bin", "HOME": "/home/u"} if environ is None else environ,
        limits=LIMITS,
    )


def directories(description: Job) -> list[str]:
    """Return the directories that a job makes and removes."""
    actions = [
        resource.end_action
        for resource in (*description.attempt_resources, *description.job_resources)
    ]
    return [os.fsdecode(a.path) for a in actions if isinstance(a, RemovePath)]


def spec(description: Job, rank: int = 0) -> protocol.Spec:
    [(kind, fields)] = protocol.Decoder().feed(description.specs[rank])
    assert kind == protocol.SPEC
    return protocol.Spec.read(fields)


def environment(description: Job, rank: int = 0) -> dict[str, str]:
    words = map(os.fsdecode, spec(description, rank).environment)
    return dict(word.split("=", 1) for word in words)


# --- What an instance is told.


def test_what_a_user_exports_is_not_what_mpirun_hands_on() -> None:
    instance_spec = spec(job(plan(OMPI_MCA_btl="self")))

    assert instance_spec.is_set_by_mpi(b"OMPI_MCA_pml")
    assert not instance_spec.is_set_by_mpi(b"OMPI_MCA_btl")
    assert instance_spec.is_set_by_mpi(b"OMPI_MCA_btl_tcp_if_include")


def test_an_instance_gets_the_program_as_it_was_called() -> None:
    instance_spec = spec(job(program=("train.py", "", "a:b", "caf\udce9")))

    assert instance_spec.path == b"/bin/train.py"
    assert instance_spec.argv == [b"train.py", b"", b"a:b", b"caf\xe9"]
    assert instance_spec.cwd == b"/home/u"
    assert (instance_spec.stdin, instance_spec.grace_ms) == (b"/dev/null", 2500)


@pytest.mark.parametrize("file", [None, "trace.json"])
def test_instances_of_a_job_with_a_trace_record_in_its_directory(
    file: str | None,
) -> None:
    description = job_description.make_job(
        plan(),
        {**SETTINGS, "trace": file},  # type: ignore[arg-type]
        *(["/bin/true"] * 2, {"POPDIST_TRACE": "/own"}),
        limits=LIMITS,
    )

    environment = spec(description, 1).environment
    folder = b"/own" if file is None else os.fsencode(description.directory)
    assert b"POPDIST_TRACE=" + folder in environment
    assert description.is_traced == (file is not None)


def test_an_instance_gets_its_binding() -> None:
    instance_spec = spec(job(plan(binding=Binding(cpus=(0, 2), memory_nodes=(1,)))))

    assert (instance_spec.cpus, instance_spec.memory_nodes) == ([0, 2], [1])
    assert (spec(job()).cpus, spec(job()).memory_nodes) == ([], [])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, f"{INTERPRETER}//"),
        ({"PYTHONPATH": ""}, f"{INTERPRETER}/"),
        ({"PYTHONPATH": "/a::/b"}, f"{INTERPRETER}:/a::/b"),
    ],
)
def test_poprun_is_first_on_pythonpath_in_a_form_that_tells_the_callers_value(
    given: dict[str, str], told: str
) -> None:
    assert environment(job(environ=given))["PYTHONPATH"] == told


def test_an_exported_pythonpath_counts() -> None:
    description = job(plan(PYTHONPATH="/mine"), environ={"PYTHONPATH": "/a"})

    assert environment(description)["PYTHONPATH"] == f"{INTERPRETER}:/mine"


def test_a_folder_that_pythonpath_cannot_name_is_not_on_it() -> None:
    changed_plan = plan(facts=replace(HERE, interpreter="/with:colon/interpreter"))

    assert environment(job(changed_plan, {"PYTHONPATH": "/a"}))["PYTHONPATH"] == "/a"


def test_each_instance_gets_its_own_part_of_the_contract() -> None:
    description = job()

    offsets = [
        environment(description, r)["POPDIST_REPLICA_INDEX_OFFSET"] for r in (0, 1)
    ]
    assert offsets == ["0", "2"]
    assert [environment(description, r)["RANK"] for r in (0, 1)] == ["0", "1"]


def test_what_the_user_has_is_inherited_byte_for_byte() -> None:
    variables = environment(job(environ=USERS))

    assert USERS.items() <= variables.items()
    assert b"NON_UTF8=caf\xe9" in spec(job(environ=USERS)).environment


def test_an_inner_job_describes_itself() -> None:
    variables = environment(job(environ=without_outer_poprun({**USERS, **LEFT})))

    assert variables["POPDIST_JOB_ID"] == "cafe"
    assert variables["POPDIST_NUM_TOTAL_REPLICAS"] == "4"
    assert variables["POPDIST_RESTART_COUNT"] == "0"
    assert variables["OMPI_COMM_WORLD_SIZE"] == "2"
    assert {"POPDIST_EXECUTABLE_CACHE_PATH", "PMIX_RANK"}.isdisjoint(variables)


def test_instances_know_where_poprun_says_which_of_them_have_ended() -> None:
    description = job(environ={**USERS, "POPDIST_ENDED_INSTANCES": "/outer"})

    file = "/dev/shm/poprun-cafe.0/ended-instances"
    assert description.ended_file() == file
    assert environment(description)["POPDIST_ENDED_INSTANCES"] == file


def test_a_users_export_counts_more_than_what_he_has() -> None:
    description = job(plan(PATH="/mine"))

    assert environment(description)["PATH"] == "/mine"
    assert [w for w in spec(description).environment if w.startswith(b"PATH=")] == [
        b"PATH=/mine"
    ]


@pytest.mark.parametrize(
    ("mpi", "has_home"), [(OpenMpi5, True), (OpenMpi4, False), (Hydra, False)]
)
def test_a_user_without_a_home_gets_one_where_the_mpi_needs_it(
    mpi: type[Mpi], has_home: bool
) -> None:
    description = job(plan(mpi), {"PATH": "/usr/bin"})

    assert ("HOME" in environment(description)) is has_home
    assert environment(job(plan(mpi)))["HOME"] == "/home/u"


def test_what_the_caller_ignores_stays_ignored() -> None:
    changed_plan = plan(
        facts=replace(HERE, ignored_signals=(signal.SIGHUP, signal.SIGINT))
    )

    assert spec(job()).ignored == []
    assert spec(job(changed_plan)).ignored == [signal.SIGHUP, signal.SIGINT]


# --- What mpirun is told.


def test_mpirun_and_all_below_it_carry_the_name_of_the_job() -> None:
    description = job(environ={**USERS, **LEFT})

    assert description.mark == "POPDIST_JOB_ID=cafe"
    assert description.mpirun_environment[b"POPDIST_JOB_ID"] == b"cafe"
    assert description.mpirun_environment[b"POPDIST_CONTROL"] == b"@poprun-babe/key"
    assert description.mpirun_environment[b"NON_UTF8"] == b"caf\xe9"
    assert b"PMIX_RANK" not in description.mpirun_environment


def test_mpirun_gets_few_of_very_many_variables_and_the_instances_all() -> None:
    many = {f"V{number}": "" for number in range(1000)}
    of_mpi = {"UCX_TLS": "tcp", "OMPI_MCA_btl": "self", "LC_ALL": "C"}

    description = job(environ={**USERS, **many, **of_mpi})
    names = set(description.mpirun_environment)

    assert b"V7" not in names
    assert {b"PATH", b"UCX_TLS", b"OMPI_MCA_btl", b"LC_ALL", b"POPDIST_JOB_ID"} <= names
    assert environment(description)["V7"] == ""
    assert b"V7" in job(environ={"V7": ""}).mpirun_environment


def test_mpirun_keeps_its_files_in_a_directory_that_goes_with_the_job() -> None:
    description = job(plan(cache="/tmp/poprun-cache-cafe"))

    assert description.mpirun_environment[b"TMPDIR"] == b"/dev/shm/poprun-cafe.0"
    assert directories(description) == [
        "/dev/shm/poprun-cafe.0",
        "/tmp/poprun-cache-cafe",
    ]
    # The program's own temporary files are its own affair.
    assert "TMPDIR" not in environment(description)


def test_a_job_that_is_only_described_leaves_nothing_behind() -> None:
    job(plan(cache="/tmp/poprun-cache-cafe"))

    assert not Path("/dev/shm/poprun-cafe.0").exists()
    assert not Path("/tmp/poprun-cache-cafe").exists()


@pytest.mark.parametrize("timeout", [None, 7.0])
def test_without_a_timeout_a_job_may_take_forever(timeout: float | None) -> None:
    description = job_description.make_job(
        plan(),
        {**SETTINGS, "timeout": timeout},  # type: ignore[arg-type]
        *(["/bin/true"] * 2, {}),
        limits=LIMITS,
    )

    assert description.timeout == (float("inf") if timeout is None else 7.0)
    assert (description.start_timeout, description.grace, description.keep_going) == (
        60,
        2.5,
        True,
    )


# --- What exec would not accept.

LONGEST = 32 * os.sysconf("SC_PAGE_SIZE") - 1


def test_the_longest_words_that_the_kernel_accepts_are_accepted() -> None:
    longest = "x" * LONGEST

    description = job(environ={"V": longest[2:]}, program=("true", longest))

    argv, words = spec(description).argv, spec(description).environment
    assert os.spawnve(os.P_WAIT, "/bin/true", argv, dict([words[0].split(b"=")])) == 0
    # One byte more, and exec refuses.
    with pytest.raises(OSError, match="Argument list too long"):
        os.posix_spawn("/bin/true", ["true", longest + "x"], {})


def test_a_word_that_is_too_long_is_refused() -> None:
    with pytest.raises(OptionError) as caught:
        job(program=("true", "x" * (LONGEST + 1)))

    assert str(caught.value) == (
        f"An argument of the program has {LONGEST + 1} bytes, but the kernel "
        f"accepts at most {LONGEST}. Pass it in a file."
    )


def test_a_variable_that_is_too_long_is_refused_by_name() -> None:
    with pytest.raises(OptionError) as caught:
        job(plan(LONG="x" * LONGEST))

    assert str(caught.value) == (
        f"The variable LONG is {LONGEST + 5} bytes long with its name, but "
        f"the kernel accepts at most {LONGEST}. Pass it in a file."
    )


def test_a_small_stack_leaves_room_for_128_kib_of_words() -> None:
    changed_plan = plan(facts=replace(HERE, stack_limit=256 << 10))

    job(changed_plan, {}, ("true", "x" * 60_000, "x" * 60_000))
    with pytest.raises(OptionError, match="the kernel accepts 131072"):
        job(changed_plan, {}, ("true", "x" * 70_000, "x" * 70_000))


def test_words_that_are_too_long_together_are_refused() -> None:
    with pytest.raises(OptionError) as caught:
        job(environ={}, program=("true", *["x" * 100_000] * 25))

    assert str(caught.value).endswith(
        " bytes in total, but the kernel accepts 2097152. Make them shorter, or raise "
        "the limit with 'ulimit -s'."
    )
