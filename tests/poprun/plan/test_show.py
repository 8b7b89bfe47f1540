import subprocess

import pytest
from plans import MPI, make_request, planned, running

from poprun.host_specs import HostSpec
from poprun.mpirun.hydra import Hydra
from poprun.mpirun.openmpi import OpenMpi5
from poprun.mpirun.values import Mpi, MpirunArguments
from poprun.plan.placement import Binding
from poprun.plan.show import command_line, instance_table, render
from poprun.plan.topology import Topology
from poprun.plan.values import Plan


def plan(
    num_instances: int = 2,
    bindings: tuple[Binding, ...] = (),
    mpi: type[Mpi] = OpenMpi5,
    passed_on: tuple[str, ...] = (),
    **exports: str,
) -> Plan:
    arguments = MpirunArguments(
        tag_output=True, allow_run_as_root=True, passed_on=passed_on
    )
    return planned(
        make_request(
            Topology(num_instances=num_instances, num_replicas=num_instances),
            [HostSpec(name="n1")],
            mpi=mpi(path=MPI.path, version=MPI.version),
            arguments=arguments,
            bindings=bindings,
            exports=exports,
            forwarded=["PATH"],
        )
    )


def exported(job_plan: Plan, rank: int) -> str:
    """Return the variables of an instance as they stand in the command of Open MPI."""
    variables = job_plan.contexts()[rank].exports.items()
    words = (n if value is None else f"{n}={value}" for n, value in variables)
    return " ".join(f"'-x' '{word}'" for word in words)


def shim(job_plan: Plan, rank: int) -> str:
    return " ".join(f"'{word}'" for word in job_plan.contexts()[rank].argv)


def test_each_instance_has_a_line_in_the_table() -> None:
    bindings = Binding(cpus=(0, 1, 8), memory_nodes=(0,)), Binding()

    assert instance_table(plan(2, bindings)) == (
        "where the instances run:\n"
        "    instance 0 on n1: replica 0, bound to CPUs 0-1,8, allocates memory on "
        "NUMA nodes 0\n"
        "    instance 1 on n1: replica 1, not bound"
    )


def test_the_command_comes_first_and_then_what_each_instance_gets() -> None:
    bindings = (
        Binding(cpus=(0, 1, 2, 3, 8), memory_nodes=(0,)),
        Binding(cpus=(4,), memory_nodes=(0, 1)),
    )
    job_plan = plan(2, bindings, GREETING="it's me", EMPTY="")

    text = render(running(job_plan, ["python", "train.py", "--name", "a b"]))

    head, rest = text.split("\n\n")
    assert head == (
        "# This command is for reading only: the supervisors in it need a "
        "running poprun.\n/opt/bin/mpirun '--bind-to' 'none' "
        "'--tag-output' '--allow-run-as-root' '-np' '1' "
        f"{exported(job_plan, 0)} {shim(job_plan, 0)} 'python' 'train.py' "
        f"'--name' 'a b' ':' '-np' '1' {exported(job_plan, 1)} "
        f"{shim(job_plan, 1)} 'python' 'train.py' '--name' 'a b'"
    )
    zero, one = rest.split("instance 1 on n1:\n")
    assert zero.splitlines() == [
        "instance 0 on n1:",
        "  runs python train.py --name 'a b'",
        "  bound to CPUs 0-3,8",
        "  allocates memory on NUMA nodes 0",
        "  RANK=0",
        "  WORLD_SIZE=2",
        "  LOCAL_RANK=0",
        "  LOCAL_WORLD_SIZE=2",
        "  GROUP_RANK=0",
        "  GROUP_WORLD_SIZE=1",
        "  ROLE_NAME=default",
        "  ROLE_RANK=0",
        "  ROLE_WORLD_SIZE=2",
        "  TORCHELASTIC_RUN_ID=cafe",
        "  TORCHELASTIC_RESTART_COUNT=0",
        "  TORCHELASTIC_USE_AGENT_STORE=False",
        "  MASTER_ADDR=127.0.0.1",
        "  MASTER_PORT=4711",
        "  OMPI_COMM_WORLD_RANK=0",
        "  OMPI_COMM_WORLD_SIZE=2",
        "  OMPI_COMM_WORLD_LOCAL_RANK=0",
        "  OMPI_COMM_WORLD_LOCAL_SIZE=2",
        "  POPDIST_NUM_TOTAL_REPLICAS=2",
        "  POPDIST_NUM_IPUS_PER_REPLICA=1",
        "  POPDIST_NUM_LOCAL_REPLICAS=1",
        "  POPDIST_UNIFORM_REPLICAS_PER_INSTANCE=1",
        "  POPDIST_REPLICA_INDEX_OFFSET=0",
        "  POPDIST_LOCAL_INSTANCE_INDEX=0",
        "  POPDIST_CONTRACT_VERSION=1",
        "  POPDIST_JOB_ID=cafe",
        "  POPDIST_OFFLINE_MODE=1",
        "  POPDIST_RESTART_COUNT=0",
        "  POPDIST_CONTROL=@poprun-babe/key",
        "  POPDIST_ARENA=beef-0",
        "  GREETING='it'\"'\"'s me'",
        "  EMPTY=''",
    ]
    assert one.splitlines()[:4] == [
        "  runs python train.py --name 'a b'",
        "  bound to CPUs 4",
        "  allocates memory on NUMA nodes 0-1",
        "  RANK=1",
    ]


@pytest.mark.parametrize(
    ("value", "quoted_value"),
    [
        pytest.param("\x1b[2J", r"$'\033[2J'", id="escape"),
        pytest.param("a'\\\n1", r"$'a\'\\\0121'", id="quote-backslash-newline-digit"),
        pytest.param("caf\udce9 é", r"$'caf\351 é'", id="a-byte-that-is-no-utf-8"),
        pytest.param("\u202eé", r"$'\342\200\256é'", id="right-to-left"),
    ],
)
def test_no_value_acts_on_a_terminal_and_a_shell_still_reads_it(
    value: str, quoted_value: str
) -> None:
    text = render(running(plan(1, V=value), ["echo", value]))

    assert f"\n  V={quoted_value}\n" in text
    assert f"\n  runs echo {quoted_value}\n" in text
    echoed = subprocess.run(
        ["bash", "-c", f"printf %s {quoted_value}".encode()], stdout=subprocess.PIPE
    )
    assert echoed.stdout == value.encode(errors="surrogateescape")


def test_the_log_shows_the_command_as_the_original_does() -> None:
    job_plan = plan(passed_on=("--mca", "btl_tcp_if_include", "10.10.0.0/16"))

    # The executable bare, every argument in quotes, and the program's words where
    # the shim gets them.
    assert command_line(running(job_plan, ["python", "bin/exec.py", "it's", ""])) == (
        "/opt/bin/mpirun '--bind-to' 'none' '--tag-output' "
        "'--mca' 'btl_tcp_if_include' '10.10.0.0/16' '--allow-run-as-root' "
        f"'-np' '1' {exported(job_plan, 0)} {shim(job_plan, 0)} "
        "'python' 'bin/exec.py' 'it'\\''s' '' ':' "
        f"'-np' '1' {exported(job_plan, 1)} {shim(job_plan, 1)} "
        "'python' 'bin/exec.py' 'it'\\''s' ''"
    )


def test_the_command_of_hydra_is_shown_in_the_same_form() -> None:
    job_plan = plan(1, mpi=Hydra)
    variables = " ".join(
        f"'-env' '{name}' '{value}'"
        for name, value in job_plan.contexts()[0].exports.items()
        if value is not None
    )

    assert command_line(running(job_plan, ["true"])) == (
        f"/opt/bin/mpirun '-bind-to' 'none' '-n' '1' {variables} "
        f"{shim(job_plan, 0)} 'true'"
    )


def test_a_program_of_the_same_words_as_a_shim_confuses_nothing() -> None:
    job_plan = plan()
    words = job_plan.contexts()[1].argv

    quoted_value = command_line(running(job_plan, words))

    quoted = " ".join(f"'{word}'" for word in words)
    assert quoted_value.count(quoted) == 3
    assert quoted_value.endswith(f" {exported(job_plan, 1)} {quoted} {quoted}")
