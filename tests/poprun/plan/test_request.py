import os
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path

import pytest

import poprun
from poprun.errors import (
    HostError,
    MpiArgumentError,
    MpiNotFoundError,
    OptionError,
    PoprunError,
    TopologyError,
)
from poprun.host_specs import HostSpec
from poprun.options import grammar
from poprun.options.programs import Program
from poprun.options.settings import Settings, resolve_settings
from poprun.output.output_files import OutputFolder
from poprun.output.stdin import Stdin
from poprun.plan import partition
from poprun.plan.assignments import make_plan
from poprun.plan.host_facts import Machine, Node
from poprun.plan.placement import Binding
from poprun.plan.request import read_request
from poprun.plan.values import (
    Describe,
    HostFacts,
    PartitionVariables,
    Plan,
    new_attempt,
)
from poprun.reach.hosts import Preflight, Preflights
from poprun.vipu.client.server_address import ServerAddress
from poprun.vipu.launch.values import PartitionOptions

PATH = {"PATH": "/usr/bin:/bin"}
HOSTS = Preflights()


def settings(*words: str) -> Settings:
    return resolve_settings(grammar.parse([*words, "program"]).options, {})


def plan_of(*words: str, environ: Mapping[str, str] = PATH) -> Plan:
    """Return the plan of a first attempt, before V-IPU is asked."""
    return plan_for(settings("--mpirun", "local", *words), environ)


def plan_for(
    own: Settings,
    environ: Mapping[str, str] = PATH,
    describe: Describe = HOSTS.describe,
) -> Plan:
    programs = [
        Program(
            argv=["program"], instances=range(0), variables=own["env"], cwd=own["cwd"]
        )
    ]
    request = read_request(own, programs, environ, "/tmp", describe)
    first = new_attempt(request.identity, 0, request.facts[0])
    options = request.partition_options
    expected = options and partition.expected_variables(options, request.identity)
    return make_plan(request, first, expected)


def next_attempt(plan: Plan, describe: Describe = HOSTS.describe) -> Plan:
    number = plan.attempt.number + 1
    first = describe(plan.request.hosts[:1])[0]
    failures = plan.attempt.num_failures + 1
    following = new_attempt(plan.request.identity, number, first, failures)
    return make_plan(plan.request, following, plan.partition)


def granted(plan: Plan, variables: PartitionVariables | None) -> Plan:
    return make_plan(plan.request, plan.attempt, variables)


def plan_with(instances: int, *words: str, environ: Mapping[str, str] = PATH) -> Plan:
    number = str(instances)
    words = ("--num-instances", number, "--num-replicas", number, *words)
    return plan_of(*words, environ=environ)


def refusal(
    kind: type[PoprunError], *words: str, environ: Mapping[str, str] = PATH
) -> str:
    with pytest.raises(kind) as caught:
        plan_of(*words, environ=environ)
    return str(caught.value)


def variables(job_plan: Plan, rank: int = 0) -> Mapping[str, str]:
    return job_plan.assignments[rank].variables


# --- Jobs that make sense.


def test_without_a_word_a_job_is_one_instance_here_on_one_ipu() -> None:
    job_plan = plan_of()

    [assignment] = job_plan.assignments
    assert (assignment.host, assignment.binding) == (
        HostSpec(name="localhost"),
        Binding(),
    )
    assert job_plan.topology.num_replicas == 1
    assert assignment.variables["POPDIST_OFFLINE_MODE"] == "0"
    assert job_plan.request.partition_options == PartitionOptions()
    assert not job_plan.request.needs_ipus
    assert (
        job_plan.request.stdin,
        job_plan.request.cache_path,
        job_plan.request.notes,
    ) == (
        Stdin(),
        None,
        [],
    )


def test_every_job_has_a_name_that_no_other_has() -> None:
    one, other = plan_of(), plan_of()

    assert re.fullmatch("[0-9a-f]{32}", one.request.identity)
    assert one.request.identity != other.request.identity
    assert variables(one)["POPDIST_JOB_ID"] == one.request.identity


def test_no_secret_of_a_job_is_made_from_another_or_shown_in_argv() -> None:
    job_plan, other = plan_of(), plan_of()
    control, arena = (variables(job_plan)[f"POPDIST_{n}"] for n in ("CONTROL", "ARENA"))

    name, key = re.fullmatch("@poprun-([0-9a-f]{16})/([0-9a-f]{32})", control).groups()  # type: ignore[union-attr]
    secret = re.fullmatch("([0-9a-f]{32})-0", arena)[1]  # type: ignore[index]
    values = {job_plan.request.identity[:16], name, key[:16], secret[:16]}
    assert len(values) == 4
    words = " ".join(job_plan.argv)
    assert job_plan.request.identity in words
    assert not any(value in words for value in (name, key, secret))
    assert control != variables(other)["POPDIST_CONTROL"]
    assert arena != variables(other)["POPDIST_ARENA"]


def test_the_key_of_links_is_in_no_argv_and_differs_in_each_attempt() -> None:
    def addressed(hosts: Sequence[HostSpec]) -> list[HostFacts]:
        return [replace(facts, address="10.5.0.1") for facts in describe(hosts)]

    job_plan = plan_for(
        settings("--mpirun", "local", "-n2", "--host=a,b"), {}, addressed
    )
    again = next_attempt(job_plan, addressed)

    keys = [
        re.fullmatch(
            "tcp://10.5.0.1:1/([0-9a-f]{32})", variables(plan)["POPDIST_LINKS"]
        )
        for plan in (job_plan, again)
    ]
    first, second = (key[1] for key in keys if key)
    assert first != second
    assert not any(key in " ".join(job_plan.printed_argv()) for key in (first, second))


def test_another_attempt_of_a_job_shares_only_its_id_and_its_cache() -> None:
    first = plan_with(2)
    # Ports that are drawn may be the same ones again; these are never drawn.
    facts = replace(first.request.facts[0], free_port=4711, links_port=4712)

    second = next_attempt(first, lambda _: [facts])

    assert second.request.identity == first.request.identity
    assert (first.attempt.number, second.attempt.number) == (0, 1)
    assert not set(astuple(first.attempt)) & set(astuple(second.attempt))
    changed = {
        name: value
        for name, value in variables(second).items()
        if value != variables(first)[name]
    }
    assert changed == {
        "POPDIST_CONTROL": second.attempt.control,
        "POPDIST_ARENA": f"{second.attempt.arena}-0",
        "POPDIST_RESTART_COUNT": "1",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "MASTER_PORT": str(second.attempt.master_port),
    }
    assert second.request.cache_path == f"/tmp/poprun-cache-{first.request.identity}"
    assert f"{first.request.identity}.1" in second.argv
    assert f"{first.request.identity}.0" not in second.argv
    assert next_attempt(second).attempt.number == 2


def test_another_attempt_of_a_job_forwards_the_same_to_mpirun() -> None:
    environ = {"PATH": os.environ["PATH"]}
    first = plan_of("--executable-cache-path=/cache", environ=environ)

    second = next_attempt(first)

    for one, other in zip(first.contexts(), second.contexts(), strict=True):
        assert list(one.exports) == list(other.exports)
        assert other.exports["POPDIST_RESTART_COUNT"] == "1"
    assert not second.request.cache_is_temporary
    assert variables(second)["POPDIST_EXECUTABLE_CACHE_PATH"] == "/cache"


def test_the_local_launcher_starts_one_shim_for_each_instance() -> None:
    job_plan = plan_with(2)

    entry = str(Path(poprun.__file__).parent / "helpers" / "entry.py")
    python = [sys.executable, "-I", "-S", entry]
    variable = "POPDIST_CONTROL"
    assert job_plan.argv == [
        *(
            *python,
            "local",
            *python,
            "shim",
            f"{job_plan.request.identity}.0",
            variable,
            "0",
            ":",
        ),
        *(*python, "shim", f"{job_plan.request.identity}.0", variable, "1"),
    ]


@pytest.mark.parametrize(
    "version", ["mpirun (Open MPI) 4.1.4", "mpirun (Open MPI) 5.0.11", "HYDRA"]
)
def test_mpirun_is_started_without_the_variables_that_are_printed(
    tmp_path: Path, version: str
) -> None:
    hydra = "HYDRA build details:\n    Version: 5.0.2\n"
    path = tmp_path / "mpirun"
    text = hydra if version == "HYDRA" else version
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)
    number = ("--num-instances", "64", "--num-replicas", "64")
    options = {"POPLAR_TARGET_OPTIONS": '{"long":"' + "x" * 40_000 + '"}'}
    words = settings("--mpirun", str(path), *number, "--vipu-partition", "p")

    job_plan = plan_for(words, PATH | options)

    assert sum(map(len, job_plan.printed_argv())) > 64 * 40_000
    assert sum(map(len, job_plan.argv)) < 64 * 400
    set_by = {"-x", "-env"}
    assert set_by & set(job_plan.printed_argv())
    assert not set_by & set(job_plan.argv)
    assert [w for w in job_plan.argv if w not in job_plan.printed_argv()] == []


def test_what_is_forwarded_by_name_stands_before_what_is_ours_alone() -> None:
    environ = {**PATH, "PYTHONPATH": "/p", "LD_LIBRARY_PATH": ""}
    [context] = plan_of("--offline-mode=1", environ=environ).contexts()

    assert list(context.exports)[5:10] == [
        "POPDIST_LOCAL_INSTANCE_INDEX",
        *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH"),
        "POPDIST_CONTRACT_VERSION",
    ]
    assert [n for n, v in context.exports.items() if v is None] == [
        *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH"),
    ]


def test_only_names_that_the_caller_has_are_forwarded() -> None:
    [context] = plan_of().contexts()

    assert [name for name, value in context.exports.items() if value is None] == [
        "PATH"
    ]


def test_a_node_of_slurm_has_the_name_that_its_users_know() -> None:
    job_plan = plan_of(environ={**PATH, "SLURMD_NODENAME": "gc-poplar-02"})

    assert job_plan.request.hosts == [HostSpec(name="gc-poplar-02")]


def test_the_nodes_of_a_slurm_job_are_the_hosts_if_the_user_names_none() -> None:
    environ = {**PATH, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gc-poplar-[02-03]"}

    job_plan = plan_with(4, environ=environ)

    assert [str(h) for h in job_plan.request.hosts] == ["gc-poplar-02", "gc-poplar-03"]
    assert job_plan.request.notes == []


def test_the_user_is_warned_of_nodes_of_slurm_that_the_job_does_not_use() -> None:
    environ = {**PATH, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gc-poplar-[02-03]"}

    assert plan_of(environ=environ).request.notes == [
        "Slurm has given this job 2 nodes, but 1 instance can use only 1 "
        "(gc-poplar-02). -n 2 starts one on each node."
    ]
    assert plan_of("--host", "localhost", environ=environ).request.notes == []


def test_each_task_of_a_step_refuses_to_start_the_job() -> None:
    environ = {**PATH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}

    assert refusal(OptionError, environ=environ).startswith(
        "srun has started 2 copies of poprun, and each would start the whole job."
    )


def test_a_job_of_slurm_with_one_node_needs_no_note() -> None:
    environ = {**PATH, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gc-poplar-02"}

    assert plan_of(environ=environ).request.notes == []


def test_a_wrong_list_of_slurm_does_not_keep_a_job_from_running_here() -> None:
    environ = {**PATH, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-"}

    [note] = plan_of(environ=environ).request.notes

    assert note.startswith("SLURM_JOB_NODELIST: 'n[0-' ")
    assert note.endswith(" All instances run on this machine.")


def test_hosts_come_from_the_option_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a\nb\n")

    for words in (("--host", "a,b"), ("--hostfile", str(file))):
        assert plan_with(2, *words).request.hosts == (
            HostSpec(name="a"),
            HostSpec(name="b"),
        )


@pytest.mark.parametrize(
    ("word", "own_variables"),
    [("-vv", "debug"), ("--debug=yes", "debug"), ("-v", None)],
)
def test_from_vv_on_popdist_is_to_say_which_algorithms_ran(
    word: str, own_variables: str | None
) -> None:
    assert variables(plan_of(word)).get("POPDIST_LOG_LEVEL") == own_variables


@pytest.mark.parametrize(
    ("words", "inherited", "given"),
    [
        ((), None, None),
        ((), "no", None),  # inherited by the instances, as any variable
        (("--emulate-sdk=yes",), "no", "yes"),
        (("--emulate-sdk=auto",), "no", "auto"),
        (("--emulate-sdk=no",), None, "no"),
    ],
)
def test_the_option_for_stand_ins_replaces_the_variable(
    words: tuple[str, ...], inherited: str | None, given: str | None
) -> None:
    environ = PATH if inherited is None else {**PATH, "POPDIST_SDK": inherited}

    assert variables(plan_of(*words, environ=environ)).get("POPDIST_SDK") == given


@pytest.mark.parametrize(
    ("words", "inherited", "given"),
    [
        ((), None, None),
        ((), "popdist", None),  # inherited by the instances, as any variable
        (("--torch-backend=popdist",), None, "popdist"),
        (("--torch-backend=gloo",), "popdist", "gloo"),
    ],
)
def test_the_option_for_torchs_backend_replaces_the_variable(
    words: tuple[str, ...], inherited: str | None, given: str | None
) -> None:
    environ = (
        PATH if inherited is None else {**PATH, "POPDIST_TORCH_BACKEND": inherited}
    )

    assert (
        variables(plan_of(*words, environ=environ)).get("POPDIST_TORCH_BACKEND")
        == given
    )


def test_a_backend_that_torch_would_not_use_is_refused() -> None:
    unknown = {**PATH, "POPDIST_TORCH_BACKEND": "mpi"}
    unloaded = {**PATH, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    with pytest.raises(OptionError) as of_value:
        plan_of(environ=unknown)
    with pytest.raises(OptionError) as of_torch:
        plan_of("--torch-backend=popdist", environ=unloaded)

    assert str(of_value.value) == (
        "POPDIST_TORCH_BACKEND is 'mpi', but must be gloo or popdist. Unset it, or use "
        "--torch-backend."
    )
    assert str(of_torch.value) == (
        "--torch-backend=popdist has no effect with "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0, which keeps torch from loading "
        "backends that are installed. Unset that variable."
    )
    plan_of(
        "--torch-backend=gloo", environ={**unloaded, "POPDIST_TORCH_BACKEND": "mpi"}
    )


def test_the_callers_log_level_of_popdist_counts_more_than_vv() -> None:
    environ = {**PATH, "POPDIST_LOG_LEVEL": "warn"}
    exported = plan_of("-vv", "--mpi-local-args", "-x POPDIST_LOG_LEVEL=off")

    assert "POPDIST_LOG_LEVEL" not in variables(plan_of("-vv", environ=environ))
    assert variables(exported)["POPDIST_LOG_LEVEL"] == "off"


def test_the_port_for_the_first_rank_is_free_and_another_each_time() -> None:
    ports = {int(variables(plan_of())["MASTER_PORT"]) for _ in range(4)}

    assert len(ports) > 1
    for port in ports:
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", port)) != 0


def test_a_cache_is_made_only_for_instances_that_share_a_host() -> None:
    job_plan = plan_with(2)

    assert (
        job_plan.request.cache_path == f"/tmp/poprun-cache-{job_plan.request.identity}"
    )
    assert {
        variables(job_plan, rank)["POPDIST_EXECUTABLE_CACHE_PATH"] for rank in (0, 1)
    } == {job_plan.request.cache_path}
    assert "POPDIST_EXECUTABLE_CACHE_PATH" not in variables(plan_with(1))
    assert plan_with(2, "--host", "a,b").request.cache_path is None


@pytest.mark.parametrize("instances", [1, 2])
def test_a_cache_that_the_user_names_is_passed_on_and_kept(instances: int) -> None:
    job_plan = plan_with(instances, "--executable-cache-path", "/c")

    assert job_plan.request.cache_path == "/c"

    assert not job_plan.request.cache_is_temporary
    assert variables(job_plan)["POPDIST_EXECUTABLE_CACHE_PATH"] == "/c"


def test_threads_are_counted_unless_the_user_has_done_so() -> None:
    assert int(variables(plan_of())["OMP_NUM_THREADS"]) == len(os.sched_getaffinity(0))
    own = plan_of(environ={**PATH, "OMP_NUM_THREADS": "3"})
    assert "OMP_NUM_THREADS" not in variables(own)


def test_exports_have_the_value_given_or_that_of_the_caller() -> None:
    job_plan = plan_of(
        *("--num-instances", "2", "--num-replicas", "2"),
        "--mpi-global-args=-x A=1 -x MINE -x NOBODYS",
        "--mpi-local-args=-x A=2 -x B=",
        *("--instance-mpi-local-args", "1:-x A=3"),
        environ={**PATH, "MINE": "m", "UNASKED": "u"},
    )

    for rank, a in enumerate("23"):
        own_variables = variables(job_plan, rank)
        assert (own_variables["A"], own_variables["B"], own_variables["MINE"]) == (
            a,
            "",
            "m",
        )
        assert {"NOBODYS", "UNASKED"}.isdisjoint(own_variables)


def test_arguments_of_one_instance_that_are_given_twice_are_all_used() -> None:
    job_plan = plan_of(
        *("--num-instances", "2", "--num-replicas", "2"),
        *("--instance-mpi-local-args", "1:-x A=b:c"),
        *("--instance-mpi-local-args", "0:"),
        *("--instance-mpi-local-args", "1:-x B=2"),
    )

    assert {"A", "B"}.isdisjoint(variables(job_plan, 0))
    assert (variables(job_plan, 1)["A"], variables(job_plan, 1)["B"]) == ("b:c", "2")


def test_programs_are_told_which_libmpi_is_this_mpiruns_unless_the_user_says(
    tmp_path: Path,
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    mpirun = tmp_path / "bin/mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.9'\n")
    mpirun.chmod(0o755)
    (tmp_path / "lib/libmpi.so.40").touch()

    ours = plan_of("--mpirun", str(mpirun))
    users = plan_of(
        "--mpirun", str(mpirun), environ={**PATH, "MPI4PY_LIBMPI": "/own.so"}
    )

    assert variables(ours)["MPI4PY_LIBMPI"] == f"{tmp_path}/lib/libmpi.so.40"
    assert "MPI4PY_LIBMPI" not in variables(users)


def test_v_ipu_and_other_hosts_are_planned() -> None:
    job_plan = plan_with(
        2,
        *("--host", "a,b", "--vipu-partition", "p64", "--vipu-server-host", "10.1.3.1"),
        *("--vipu-server-port", "8091", "--vipu-server-timeout", "600"),
    )

    own_variables = variables(job_plan, 1)
    assert [
        own_variables[f"IPUOF_VIPU_API_{name}"] for name in ("HOST", "PORT", "TIMEOUT")
    ] == [*("10.1.3.1", "8091", "600")]
    assert own_variables["IPUOF_VIPU_API_PARTITION_ID"] == "p64"
    assert own_variables["POPDIST_OFFLINE_MODE"] == "0"


def test_the_partition_of_a_job_that_names_none_has_the_jobs_id() -> None:
    job_plan = plan_of("--vipu-server-timeout=7")

    assert job_plan.request.needs_ipus
    own_variables = variables(job_plan)
    assert (
        own_variables["IPUOF_VIPU_API_PARTITION_ID"]
        == f"poprun-{job_plan.request.identity}"
    )
    assert own_variables["IPUOF_VIPU_API_TIMEOUT"] == "7"
    # The inventory is that of this machine, not that of a server.
    assert "IPUOF_VIPU_API_HOST" not in own_variables
    assert "IPUOF_VIPU_API_PORT" not in own_variables


def test_the_partition_that_v_ipu_grants_sets_variables_of_instances() -> None:
    requested = plan_with(2, "--num-replicas=4")
    variables_of_p64 = PartitionVariables(
        options=PartitionOptions(server=ServerAddress("h", 1), timeout_s=2),
        name="p64",
        node_device=64,
        target_options={"instanceSize": "32"},
        num_ilds=2,
    )

    job_plan = granted(requested, variables_of_p64)

    assert job_plan.topology.num_ilds == 2
    for rank, context in enumerate(job_plan.contexts()):
        own_variables = variables(job_plan, rank)
        assert own_variables["POPDIST_NODE_DEVICE_ID"] == "64"
        assert own_variables["IPUOF_VIPU_API_PARTITION_ID"] == "p64"
        assert own_variables["POPLAR_TARGET_OPTIONS"] == '{"instanceSize":"32"}'
        assert "IPUOF_VIPU_API_GCD_ID" not in own_variables
        assert context.exports["POPDIST_NODE_DEVICE_ID"] == "64"
        assert context.argv == requested.contexts()[rank].argv


@pytest.mark.parametrize(("words", "ilds"), [((), 1), (("--num-ilds=1",), 1)])
def test_v_ipu_determines_the_ilds_unless_the_user_does(
    words: tuple[str, ...], ilds: int
) -> None:
    # One instance cannot be shared equally among two ILDs.
    requested = plan_of(*words)
    assert requested.partition is not None

    job_plan = granted(requested, replace(requested.partition, num_ilds=2))

    assert job_plan.topology.num_ilds == ilds


def test_a_job_without_ipus_has_no_variables_of_a_partition() -> None:
    job_plan = granted(plan_of(), None)

    assert variables(job_plan)["POPDIST_OFFLINE_MODE"] == "1"
    assert not [name for name in variables(job_plan) if name.startswith("IPUOF_")]
    assert "POPLAR_TARGET_OPTIONS" not in job_plan.contexts()[0].exports


def test_offline_mode_counts_more_than_a_partition() -> None:
    job_plan = plan_of("--offline-mode", "yes", "--vipu-partition", "p64")

    assert variables(job_plan)["POPDIST_OFFLINE_MODE"] == "1"
    assert not [name for name in variables(job_plan) if name.startswith("IPUOF_")]


def test_processes_have_no_partition_and_are_told_why() -> None:
    job_plan = plan_of("-n", "2")

    assert job_plan.request.partition_options is None
    own_variables = variables(job_plan, 1)
    assert own_variables["POPDIST_OFFLINE_MODE"] == "1"
    assert own_variables["POPDIST_OFFLINE_BECAUSE_OF"] == "-n"
    vendors = ("IPUOF_", "POPLAR_")
    assert not [name for name in own_variables if name.startswith(vendors)]
    offline = plan_of("-n", "2", "--offline-mode=yes")
    assert "POPDIST_OFFLINE_BECAUSE_OF" not in variables(offline)


def test_the_variables_of_torchrun_count_failed_attempts() -> None:
    job_plan = plan_of("-n", "2", "--max-restarts=3")
    first = job_plan.request.facts[0]
    grown = new_attempt("", 2, first, num_failures=1)
    grown_plan = make_plan(job_plan.request, grown, None)

    assert variables(grown_plan)["POPDIST_RESTART_COUNT"] == "2"
    plans = (job_plan, next_attempt(job_plan), grown_plan)
    for plan, count in zip(plans, "011", strict=True):
        own_variables = variables(plan)
        assert own_variables["TORCHELASTIC_RUN_ID"] == job_plan.request.identity
        assert own_variables["TORCHELASTIC_RESTART_COUNT"] == count
        assert own_variables["TORCHELASTIC_MAX_RESTARTS"] == "3"


def test_target_options_of_the_caller_are_merged() -> None:
    environ = {**PATH, "POPLAR_TARGET_OPTIONS": '{"ipuLinkTopology":"torus"}'}

    job_plan = plan_of("--vipu-partition", "p", environ=environ)

    assert '"ipuLinkTopology":"torus"' in variables(job_plan)["POPLAR_TARGET_OPTIONS"]
    assert (
        plan_of(environ=PATH | {"POPLAR_TARGET_OPTIONS": ""}).request.target_options
        == {}
    )


@pytest.mark.parametrize(
    ("text", "stdin"),
    [
        ("none", Stdin()),
        ("all", Stdin(copies=2)),
        ("1", Stdin(rank=1)),
        ("/dev/zero", Stdin(path="/dev/zero")),
    ],
)
def test_stdin_is_for_no_instance_for_all_for_one_or_a_file(
    text: str, stdin: Stdin
) -> None:
    assert plan_with(2, "--stdin", text).request.stdin == stdin


def test_a_file_for_stdin_is_found_wherever_a_program_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0").touch()
    monkeypatch.chdir(tmp_path)

    assert plan_of("--stdin", "./0").request.stdin == Stdin(path=str(tmp_path / "0"))


def test_what_has_no_effect_is_noted(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho HYDRA build details:; echo ' Version: 5.0.2'\n")
    mpirun.chmod(0o755)

    job_plan = plan_of("--mpirun", str(mpirun), "--mpi-local-args=--mca btl tcp")

    assert job_plan.request.notes == [
        "--mpi-local-args has '--mca btl', which has no effect on hydra."
    ]


def test_what_counts_for_the_job_may_stand_with_the_instances_or_be_an_option() -> None:
    job_plan = plan_with(
        2,
        "--output-filename=logs:nocopy",
        "--mpi-local-args=--tag-output",
        "--instance-mpi-local-args=1:--allow-run-as-root --bind-to core",
    )

    assert job_plan.request.arguments.tag_output
    assert job_plan.request.arguments.allow_run_as_root
    assert job_plan.request.arguments.placement == "spreadcores"
    folder = job_plan.request.output_folder
    assert folder == OutputFolder(
        option="--output-filename", directory="logs", only_files=True
    )


def test_the_logs_of_each_run_have_a_folder_of_their_own() -> None:
    folders = [plan_of("--log-dir=logs:nocopy").request.output_folder for _ in "ab"]

    for folder in filter(None, folders):
        assert (folder.directory, folder.only_files) == ("logs", True)
        assert re.fullmatch(r"20\d\d-\d\d-\d\d-\d{6}-[0-9a-f]{8}", folder.run)
        assert folder.of_attempt(2) == f"logs/{folder.run}/attempt-2"
    assert len({folder.run for folder in filter(None, folders)}) == 2


def test_the_nearest_directory_counts_for_an_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("all", "each", "one"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    job = "--mpi-global-args=--wdir all"
    each = f"--mpi-local-args=-wd {tmp_path}/each"
    one = "--instance-mpi-local-args=1:--wdir ./one"

    def directories(*words: str) -> list[str]:
        job_plan = plan_with(2, *words).assignments
        assert all(one.variables.get("PWD") == one.directory for one in job_plan)
        return [Path(one.directory or "none").name for one in job_plan]

    assert directories() == ["none", "none"]
    assert directories(job) == ["all", "all"]
    assert directories(job, each) == ["each", "each"]
    assert directories(job, one) == ["all", "one"]
    assert directories(each, one) == ["each", "one"]
    assert directories("--cwd", "all") == ["all", "all"]
    assert directories("--wdir=./each", one) == ["each", "one"]


def test_variables_of_one_instance_count_more_than_those_of_all() -> None:
    environ = {**PATH, "CALLER": "c", "CALLED": "d", "EMPTY": ""}
    words = (
        *("--mpi-local-args=-x A=x -x B=x -x C=x", "--env=B=each"),
        *("--instance-mpi-local-args=1:-x C=x1 -x D=x1", "--env=1:D=own"),
        *("--env", "CALL*", "--env=EMPTY", "--env=0,2:E=a=b c\n\u00e9", "--env=ALL="),
    )

    request = plan_with(3, *words, environ=environ).request

    each = {"A": "x", "B": "each", "C": "x", "CALLER": "c", "CALLED": "d"}
    each |= {"EMPTY": "", "ALL": ""}
    assert [each.exports for each in request.assignments] == [
        {**each, "E": "a=b c\n\u00e9"},
        {**each, "C": "x1", "D": "own"},
        {**each, "E": "a=b c\n\u00e9"},
    ]
    assert request.notes == []


def test_the_user_is_warned_of_a_variable_that_is_not_there_to_pass_on() -> None:
    assert plan_with(2, "--env=GONE", "--env=0:NO*").request.notes == [
        "--env GONE has nothing to pass on: GONE is not set in poprun's "
        "own environment.",
        "--env NO* has nothing to pass on: poprun's own environment has no "
        "variable that begins with NO.",
    ]


def test_slots_that_suffice_are_accepted() -> None:
    assert plan_with(4, "--host", "a:2,alice@b:3").request.hosts == (
        HostSpec(name="a", slots=2),
        HostSpec(name="b", slots=3, user="alice"),
    )


def test_the_user_is_warned_of_options_for_several_hosts_on_one_host() -> None:
    words = ("--host-subnet=10.5.0.0/16", "--distribute-ssh-key=yes")

    assert plan_of(*words, "--synchronise-poplar-sdk=no").request.notes == [
        "--host-subnet has no effect on a job on a single host.",
        "--distribute-ssh-key has no effect on a job on a single host.",
    ]
    assert plan_with(2, *words, "--host", "a,b").request.notes == []


def test_options_that_prepare_other_hosts_have_an_effect_on_a_single_one(
    tmp_path: Path,
) -> None:
    words = (f"--sync={tmp_path}", "--distribute-ssh-key=yes", "--host=a")

    def describe(hosts: Sequence[HostSpec]) -> list[HostFacts]:
        return [replace(HOSTS.describe(hosts)[0], environ={})]

    own = settings("--mpirun", "local", *words)
    assert plan_for(own, describe=describe).request.notes == []
    # The tests' hosts are poprun's own.
    assert len(plan_of(*words).request.notes) == 2
    # A dry run takes all hosts for it.
    assert plan_of(*words, "--dry-run").request.notes == []


def test_root_may_start_a_job_unless_the_user_says_no(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert plan_of().request.arguments.allow_run_as_root
    assert plan_of("--allow-run-as-root=1").request.arguments.allow_run_as_root
    assert refusal(OptionError, "--allow-run-as-root=no") == (
        "You are root, and --allow-run-as-root is no (command line). Leave "
        "it out, or run poprun as another user."
    )
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not plan_of().request.arguments.allow_run_as_root
    assert not plan_of("--allow-run-as-root=no").request.arguments.allow_run_as_root


def test_all_variables_of_one_beginning_are_exported_but_those_of_a_job() -> None:
    environ = {**PATH, "MY_A": "1", "MY_B": "2", "YOUR_A": "3", "POPDIST_JOB_ID": "x"}

    job_plan = plan_of("--mpi-local-args=-x MY_* -x POPDIST*", environ=environ)

    assert variables(job_plan)["MY_A"] == "1"
    assert variables(job_plan)["MY_B"] == "2"
    assert "YOUR_A" not in variables(job_plan)
    assert variables(job_plan)["POPDIST_JOB_ID"] == job_plan.request.identity


# --- Jobs that make none.


@pytest.mark.parametrize(
    ("kind", "words", "sentence"),
    [
        pytest.param(
            TopologyError,
            ("--num-instances", "3", "--num-replicas", "8"),
            "8 replicas cannot be shared equally among 3 instances. Ask for 6 "
            "or 9 replicas.",
            id="topology",
        ),
        pytest.param(
            OptionError,
            ("--only-output-from-instance", "1"),
            "--only-output-from-instance names 1, but the job has only 1 instance. "
            "Give 0.",
            id="output",
        ),
        pytest.param(
            OptionError,
            (
                *("--instance-mpi-local-args", "4:-x A=1"),
                *("--num-instances", "4", "--num-replicas", "4"),
            ),
            "--instance-mpi-local-args names instance 4, but the job has only "
            "4 instances. Give a number from 0 to 3.",
            id="arguments",
        ),
        pytest.param(
            OptionError,
            ("--stdin", "2", "--num-instances", "2", "--num-replicas", "2"),
            "--stdin is 2, but the job has only 2 instances. Give a number from 0 to "
            "1. A file of that name is ./2.",
            id="stdin-number",
        ),
        pytest.param(
            OptionError,
            ("--stdin", "/nothing/there"),
            "--stdin is '/nothing/there', which cannot be read: No such file "
            "or directory. It must be none, all, the number of an instance or "
            "a file.",
            id="stdin-file",
        ),
        pytest.param(
            OptionError,
            ("--mpi-global-args=--npernode 2",),
            "--npernode 2 contradicts --num-instances and --host, which give each host "
            "1 instance. Leave --npernode out.",
            id="npernode",
        ),
        pytest.param(
            OptionError,
            ("--hostfile", "/nothing/there"),
            "--hostfile '/nothing/there' cannot be read: No such file or directory.",
            id="hostfile",
        ),
        pytest.param(
            OptionError,
            ("--mpi-local-args=--wdir /nothing/there",),
            "No instance can run in '/nothing/there': No such file or "
            "directory. Create it with mkdir -p, or name another directory "
            "with --cwd.",
            id="wdir",
        ),
        pytest.param(
            OptionError,
            ("--mpi-global-args=-wd /etc/passwd",),
            "No instance can run in '/etc/passwd': it is not a directory. "
            "Create it with mkdir -p, or name another directory with --cwd.",
            id="wdir-file",
        ),
        pytest.param(
            OptionError,
            ("--cwd=/nothing/there",),
            "No instance can run in '/nothing/there': No such file or "
            "directory. Create it with mkdir -p, or name another directory "
            "with --cwd.",
            id="cwd",
        ),
        pytest.param(
            OptionError,
            ("--cwd=/", "--mpi-local-args=--wdir /tmp"),
            "--cwd is '/', and the arguments for mpirun have --wdir '/tmp', but an "
            "instance runs in one directory. Leave one of them out.",
            id="cwd-and-wdir",
        ),
        *(
            pytest.param(
                OptionError,
                ("--sync", folder),
                f"--sync is {folder!r}, which {why}. Name the folder that contains "
                "your program.",
                id=f"sync-{folder}",
            )
            for folder, why in (
                ("/nothing/there", "does not exist"),
                ("/etc/passwd", "is not a directory"),
                ("/", "contains your home directory, with your keys and settings"),
                ("/usr/../etc", "belongs to the system"),
                ("/home", "belongs to the system"),
                ("/proc/self", "belongs to the system"),
                ("/proc/self/cwd", "belongs to the system"),
            )
        ),
        pytest.param(
            OptionError,
            ("--env=0-1:TOKEN=secret",),
            "--env 0-1:TOKEN names instance 1, but the job has only 1 instance. Give "
            "0.",
            id="env",
        ),
        pytest.param(
            MpiArgumentError,
            ("--output-filename=a", "--mpi-global-args=--output-filename b"),
            "--output-filename applies to the whole job, but is given as 'b' "
            "and as 'a'. Leave one of them out.",
            id="output-filename",
        ),
        pytest.param(
            OptionError,
            ("--log-dir=a", "--mpi-global-args=--output-filename b"),
            "--log-dir is 'a', and the arguments for mpirun contain "
            "--output-filename 'b', but a job can write only to one of them. "
            "Leave the other one out.",
            id="two-folders",
        ),
        pytest.param(
            OptionError,
            ("--host", "a:2", "--num-instances=4", "--num-replicas=4"),
            "The host a:2 has fewer slots than instances: each host gets 4 "
            "instances. Give it 4 slots, or ask for fewer instances with "
            "--num-instances.",
            id="slots",
        ),
        pytest.param(
            MpiNotFoundError,
            ("--mpirun", "/nothing/there"),
            "There is no /nothing/there to use as mpirun. Give --mpirun the path of an "
            "mpirun, or leave it out to use the one that is installed.",
            id="mpirun",
        ),
        pytest.param(
            MpiArgumentError,
            ("--mpi-local-args=-x POPDIST_NUM_LOCAL_REPLICAS=2",),
            "--mpi-local-args has -x 'POPDIST_NUM_LOCAL_REPLICAS=2', but "
            "POPDIST_NUM_LOCAL_REPLICAS is set by poprun for each instance. Leave it "
            "out.",
            id="contract",
        ),
    ],
)
def test_a_job_that_makes_no_sense_is_refused_in_a_sentence(
    kind: type[PoprunError], words: tuple[str, ...], sentence: str
) -> None:
    assert refusal(kind, *words) == sentence


def test_npernode_that_agrees_is_accepted() -> None:
    assert len(plan_with(2, "--mpi-global-args=--npernode 2").assignments) == 2


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "null"])
def test_target_options_that_are_no_object_are_refused(text: str) -> None:
    assert refusal(OptionError, environ={**PATH, "POPLAR_TARGET_OPTIONS": text}) == (
        f"POPLAR_TARGET_OPTIONS is {text!r}, but must be a JSON object such as "
        '{"ipuLinkTopology":"mesh"}. Unset it if you do not need it.'
    )


def test_a_hostfile_is_read_whole_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a\n" + "#" * (1 << 20))

    assert refusal(OptionError, "--hostfile", str(file)) == (
        f"--hostfile '{file}' has more than 1048576 characters, more than "
        "any list of hosts has. Name another file."
    )


def test_a_hostfile_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(b"\xff\xfe")

    assert refusal(OptionError, "--hostfile", str(file)) == (
        f"--hostfile '{file}' cannot be read: it is not UTF-8 text."
    )


# --- Jobs that make sense, and cannot be started yet.


def hints(*words: str) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        plan_of(*words)
    return getattr(caught.value, "__notes__", [])


def test_a_hint_names_the_default_of_one_replica() -> None:
    assert hints("--num-instances=4") == [
        "Without --num-replicas a job has 1 replica. For one replica in "
        "each instance add --num-replicas 4, or write -n 4 instead of --num-instances "
        "4."
    ]
    assert hints("--num-instances=4", "--num-replicas=1") == []


def machine(*cpus: int) -> Machine:
    return Machine(nodes=(Node(index=0, cpus=cpus),))


FACTS = {
    "a": HostFacts(machine=machine(0, 1), free_port=4711, links_port=1, cwd="/home/a"),
    "b": HostFacts(
        machine=machine(0, 1, 2, 3, 4, 5), free_port=4712, links_port=1, cwd="/home/b"
    ),
}


def describe(hosts: Sequence[HostSpec]) -> list[HostFacts]:
    return [FACTS[host.name] for host in hosts]


def on_two_hosts(*words: str) -> Plan:
    """Return the plan of 4 instances on two hosts that differ."""
    requested = settings("--mpirun", "local", "-n", "4", "--host", "a,b", *words)
    return plan_for(requested, describe=describe)


def test_hosts_with_different_cpus_get_bindings_and_threads_of_their_own() -> None:
    job_plan = on_two_hosts("--process-placement", "spreadcores")

    assert [a.binding.cpus for a in job_plan.assignments] == [
        (0,),
        (1,),
        (0, 1, 2),
        (3, 4, 5),
    ]
    ranks = range(4)
    assert [variables(job_plan, r)["OMP_NUM_THREADS"] for r in ranks] == list("1133")


def test_rank_0_listens_on_a_port_that_is_free_on_its_host() -> None:
    job_plan = on_two_hosts("--host", "b,a")

    again = next_attempt(job_plan, describe)

    for plan in job_plan, again:
        assert {variables(plan, rank)["MASTER_PORT"] for rank in range(4)} == {"4712"}


def test_an_instance_runs_in_the_current_directory_of_its_host() -> None:
    assert [a.cwd for a in on_two_hosts().assignments] == [
        *("/home/a", "/home/a", "/home/b", "/home/b")
    ]


def test_a_relative_directory_is_one_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, facts in FACTS.items():
        monkeypatch.setitem(FACTS, name, replace(facts, environ={}))

    job_plan = on_two_hosts("--mpi-local-args=--wdir ./out")

    directories = ["/home/a/out", "/home/a/out", "/home/b/out", "/home/b/out"]
    assert [a.cwd for a in job_plan.assignments] == directories
    assert [variables(job_plan, rank)["PWD"] for rank in range(4)] == directories


def test_each_program_is_looked_for_once_on_each_host() -> None:
    calls = []

    class Host(Preflight):
        def __init__(self, spec: HostSpec) -> None:
            super().__init__()
            self.name = spec.name
            self.is_busy = False

        def find_program(
            self, argv: Sequence[str], search_path: str | None, cwd: str
        ) -> str:
            # It has one connection: the answers to two questions could be swapped.
            assert not self.is_busy
            self.is_busy = True
            time.sleep(0.01)
            self.is_busy = False
            calls.append((self.name, list(argv), search_path, cwd))
            return f"/opt/{self.name}/{argv[0]}"

    programs = [
        Program(argv=["train", "-v"], instances=range(3)),
        Program(argv=["serve"], instances=range(3, 4)),
    ]
    request = on_two_hosts().request
    assignments = [
        replace(each, program=programs[each.rank == 3]) for each in request.assignments
    ]
    request = replace(request, assignments=assignments)
    preflights = Preflights(lambda hosts: {spec: Host(spec) for spec in hosts})
    preflights.describe(request.hosts)

    assert preflights.find_programs(request, PATH) == [
        *("/opt/a/train", "/opt/a/train", "/opt/b/train", "/opt/b/serve")
    ]
    # Both are asked at once.
    assert sorted(calls) == [
        ("a", ["train", "-v"], PATH["PATH"], "/home/a"),
        ("b", ["serve"], PATH["PATH"], "/home/b"),
        ("b", ["train", "-v"], PATH["PATH"], "/home/b"),
    ]


def test_hosts_that_are_not_on_the_named_network_are_refused() -> None:
    addresses = {"a": ("10.5.0.1", "fd00::1"), "b": ("127.0.0.1", "10.6.0.2")}

    def describe_addresses(hosts: Sequence[HostSpec]) -> list[HostFacts]:
        return [
            replace(FACTS[host.name], addresses=addresses[host.name]) for host in hosts
        ]

    requested = settings(
        *("--mpirun", "local", "-n2", "--host=a,b", "--host-subnet=10.5.0.9/16")
    )
    with pytest.raises(HostError) as refusal:
        plan_for(requested, describe=describe_addresses)

    assert str(refusal.value) == (
        "The host b is not on the network 10.5.0.0/16 of --host-subnet: "
        "its addresses are 127.0.0.1, 10.6.0.2. Name a network that all "
        "hosts are on, or leave the option out."
    )


def crowded(cpus: int, *words: str) -> list[str]:
    facts = HostFacts(
        machine=Machine(nodes=(Node(index=0, cpus=tuple(range(cpus))),)),
        free_port=4711,
        links_port=4712,
        cwd="/",
    )
    own = settings("--mpirun", "local", *words)
    request = read_request(
        own,
        [Program(argv=["x"], instances=range(0))],
        PATH,
        "/tmp",
        lambda hosts: [facts for _ in hosts],
    )
    return [note for note in request.notes if "share" in note]


def test_ten_times_as_many_instances_as_cpus_are_noted() -> None:
    assert crowded(2, "-n", "20") == [
        "20 instances share the 2 usable CPUs of localhost. -n auto starts one for "
        "each CPU."
    ]
    assert crowded(2, "-n", "19") == []
    assert crowded(1, "--host", "a,b", "-n", "20") == [
        "10 instances share the 1 usable CPU of a. -n auto starts one for each CPU."
    ]


def test_a_dry_run_notes_nothing_about_the_cpus_of_other_hosts() -> None:
    assert crowded(1, "--host", "a,b", "-n", "20", "--dry-run") == []
    assert len(crowded(1, "-n", "20", "--dry-run")) == 1
