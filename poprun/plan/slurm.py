"""The Slurm job that poprun runs in: its variables -> the hosts of a job.

salloc and sbatch give their program the variables of the job; srun adds the variables
of one of its steps.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from poprun.errors import HostError, OptionError
from poprun.host_specs import HostSpec, errors_at, parse_hosts
from poprun.words import counted

JOB_ID = "SLURM_JOB_ID"
NODE_LIST = "SLURM_JOB_NODELIST"
NODE_NAME = "SLURMD_NODENAME"
STEP_ID = "SLURM_STEP_ID"
STEP_TASKS = "SLURM_STEP_NUM_TASKS"
TASKS_PER_NODE = "SLURM_TASKS_PER_NODE"
# Set only where the user has asked for tasks.
ASKED_FOR_TASKS = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
# Names of the partition that V-IPU's plugin for Slurm, or a prolog, makes for a job.
PARTITION_NAMES = ("slurm_{}", "p{}")
_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_")
# These describe one task or one step.
_OF_A_TASK = frozenset(
    [
        "SLURM_CPU_BIND",
        "SLURM_CPU_BIND_LIST",
        "SLURM_CPU_BIND_TYPE",
        "SLURM_CPU_BIND_VERBOSE",
        "SLURM_GTIDS",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_PROCID",
        "SLURM_TASK_PID",
        "SLURM_TOPOLOGY_ADDR",
        "SLURM_TOPOLOGY_ADDR_PATTERN",
        "SRUN_DEBUG",
    ]
)
_OF_A_STEP = ("SLURM_SRUN_COMM_", "SLURM_STEP")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """The nodes that Slurm has given to a job."""

    job_id: str
    nodes: tuple[HostSpec, ...]


def read_job(environ: Mapping[str, str]) -> SlurmJob | None:
    """Return the nodes of the Slurm job that poprun runs in; None outside one.

    Raises:
        HostError: Their list is not valid.
    """
    job_id = environ.get(JOB_ID, "")
    names = environ.get(NODE_LIST)
    if not re.fullmatch("[0-9]+", job_id) or not names:
        return None
    with errors_at(NODE_LIST):
        nodes = parse_hosts(names)
    counts = _tasks_per_node(environ)
    if len(counts) == len(nodes):
        nodes = tuple(
            replace(node, slots=count)
            for node, count in zip(nodes, counts, strict=True)
        )
    return SlurmJob(job_id=job_id, nodes=nodes)


def present_nodes(job: SlurmJob, listing: str) -> tuple[HostSpec, ...]:
    """Return the nodes in the line of squeue that begins with the id of a job.

    Slurm does not count tasks on nodes that a job gets later: each has as many slots
    as the node with the fewest at the start.

    Raises:
        HostError: There is no such line, or its list of nodes is not valid.
    """
    lines = (line.partition(" ") for line in listing.splitlines())
    # It may also list other tasks of an array, or parts of a heterogeneous job.
    names = next((names for number, _, names in lines if number == job.job_id), "")
    if not names:
        raise HostError(f"It lists no nodes of job {job.job_id}.")
    with errors_at("squeue"):
        nodes = parse_hosts(names)
    slots = {node.name: node.slots for node in job.nodes}
    fewest = min((number for number in slots.values() if number), default=None)
    return tuple(replace(node, slots=slots.get(node.name, fewest)) for node in nodes)


def count_tasks(allocation: SlurmJob) -> tuple[int, str]:
    """Return how many tasks srun would start, and the variable that says so.

    It starts one on each node, unless the user has asked for tasks.
    """
    slots = [node.slots for node in allocation.nodes if node.slots is not None]
    if slots:
        return sum(slots), TASKS_PER_NODE
    return len(allocation.nodes), NODE_LIST


def check_is_only_task(environ: Mapping[str, str]) -> None:
    """Refuse to run in a step of several tasks: each of them would start the job.

    Raises:
        OptionError: srun has started several.
    """
    tasks = environ.get(STEP_TASKS, "")
    if environ.get(STEP_ID) and tasks.isdigit() and int(tasks) > 1:
        raise OptionError(
            f"srun has started {tasks} copies of poprun, and each would start the "
            "whole job. Start one with 'srun --ntasks=1 poprun ...', or run poprun "
            "without srun; --num-instances says how many instances it starts."
        )


def choose_nodes(
    allocation: SlurmJob, num_instances: int, environ: Mapping[str, str]
) -> tuple[Sequence[HostSpec], list[str]]:
    """Return the nodes of an allocation that a job runs on, and notes about others.

    Each gets as many instances. If there are fewer instances than nodes, each of the
    first ones gets one; the first is then the node of poprun, if that is on one.
    """
    nodes = allocation.nodes
    if num_instances >= len(nodes):
        if num_instances % len(nodes):
            fewer = num_instances - num_instances % len(nodes)
            raise OptionError(
                f"{num_instances} instances cannot be shared equally among the "
                f"{len(nodes)} nodes that Slurm has given this job. Ask for {fewer} or "
                f"{fewer + len(nodes)} with --num-instances, or name fewer of the "
                "nodes with --host."
            )
        share = num_instances // len(nodes)
        if too_small := [n for n in nodes if n.slots is not None and n.slots < share]:
            node = too_small[0]
            raise OptionError(
                f"Slurm has given this job {counted(node.slots or 0, 'task')} on the "
                f"node {node.name}, but {counted(share, 'instance')} would run there. "
                f"Ask Slurm for --ntasks-per-node={share}, ask poprun for fewer "
                "instances with --num-instances, or name the hosts with --host."
            )
        return nodes, []
    own = environ.get(NODE_NAME)
    chosen = sorted(nodes, key=lambda node: node.name != own)[:num_instances]
    names = ", ".join(node.name for node in chosen[:4])
    names += ", ..." if len(chosen) > 4 else ""
    note = (
        f"Slurm has given this job {len(nodes)} nodes, but "
        f"{counted(len(chosen), 'instance')} can use only {len(chosen)} ({names}). "
        f"-n {len(nodes)} starts one on each node."
    )
    return chosen, [note]


def partition_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return what V-IPU's partition for the Slurm job may be called."""
    job_id = environ.get(JOB_ID, "")
    return tuple(name.format(job_id) for name in PARTITION_NAMES if job_id)


def is_of_slurm(name: str) -> bool:
    """Return whether a variable is one that Slurm sets or reads."""
    return name.startswith(_PREFIXES)


def node_environment(
    agents: Mapping[str, str], callers: Mapping[str, str]
) -> dict[str, str]:
    """Return what the instances of a node begin with.

    They get the variables of Slurm that describe the job, as poprun has them. They do
    not get the variables that describe a task or a step: an instance is neither.

    Args:
        agents: The environment of the node's agent, which srun has started.
        callers: The environment of poprun.
    """
    variables = {n: value for n, value in agents.items() if not is_of_slurm(n)}
    variables |= {
        name: value
        for name, value in callers.items()
        if is_of_slurm(name)
        and name not in _OF_A_TASK
        and not name.startswith(_OF_A_STEP)
    }
    if NODE_NAME in agents:
        variables[NODE_NAME] = agents[NODE_NAME]
    return variables


def _tasks_per_node(environ: Mapping[str, str]) -> list[int]:
    """Return the numbers of tasks that the user has asked Slurm for, by node.

    In a step the variable describes the step, not the job: the user may have started
    poprun with srun --ntasks=1.
    """
    if environ.get(STEP_ID) or not any(map(environ.get, ASKED_FOR_TASKS)):
        return []
    counts: list[int] = []
    for piece in environ.get(TASKS_PER_NODE, "").split(","):
        # "2(x3)" stands for three nodes with two tasks each.
        match = re.fullmatch(r"([1-9][0-9]{0,4})(?:\(x([1-9][0-9]{0,4})\))?", piece)
        if not match:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
