"""Shows a plan as options say: the topology, the dry run, the log."""

import errno
import json
import os
import shlex
from collections.abc import Sequence
from typing import Any

from poprun.errors import OUTPUT_CLOSED, UNWRITTEN
from poprun.log import DEBUG, Log
from poprun.options.programs import words_of
from poprun.options.settings import Settings
from poprun.output.terminal import columns_of
from poprun.output.writer import write_text
from poprun.plan.drawing import draw
from poprun.plan.values import Assignment, Plan
from poprun.vipu.launch.values import compact_json
from poprun.words import counted, format_ranges, json_text

# If the command is pasted nevertheless, its first supervisor ends with an error.
NOT_TO_PASTE = (
    "# This command is for reading only: the supervisors in it need a running poprun."
)


def show_plan(
    plan: Plan,
    settings: Settings,
    log: Log,
    device_lines: Sequence[tuple[str, str]] = (),
    partition_note: str = "",
) -> int:
    """Print what the settings ask for; return the exit code, 0 if it is written.

    Args:
        device_lines: The log lines about the IPUs of the job, with their levels.
        partition_note: A sentence about the partition of a dry run.
    """
    if settings.prints_topology or settings.verbosity >= DEBUG:
        hosts = [host.name for host in plan.request.hosts]
        form = "json" if settings["json"] else settings["topology-format"]
        text = draw(plan.topology, hosts, form, columns_of(1))
        if code := _print(text + "\n", log):
            return code
    is_dry_run = settings["dry-run"]
    if plan.request.arguments.show_instances and not is_dry_run:
        log.say(instance_table(plan), even_if_quiet=True)
    if settings.verbosity:
        _log_plan(log, plan, settings, device_lines)
    if not is_dry_run:
        return 0
    if settings["json"]:
        value = as_object(plan, partition_note)
        return _print(json.dumps(value, indent=2) + "\n", log)
    return _print(render(plan, partition_note), log)


def _print(text: str, log: Log) -> int:
    """Write a text to stdout, and return the exit code that follows from it."""
    failure = write_text(1, text)
    if not failure:
        return 0
    if failure == errno.EPIPE:
        return OUTPUT_CLOSED
    log.error(f"The standard output cannot be written: {os.strerror(failure)}.")
    return UNWRITTEN


def render(plan: Plan, partition_note: str = "") -> str:
    """Return mpirun's command, the variables of each instance, and the partition.

    Args:
        partition_note: A sentence about the partition, from asking V-IPU.
    """
    lines = [NOT_TO_PASTE, command_line(plan), ""]
    for assignment in plan.assignments:
        lines.append(f"instance {assignment.rank} on {assignment.host.name}:")
        words = map(_shell_word, assignment.program.argv)
        lines.append(f"  runs {' '.join(words)}")
        if assignment.directory is not None:
            lines.append(f"  in {_shell_word(assignment.directory)}")
        lines += [f"  {line}" for line in _binding(assignment)]
        lines += [
            f"  {name}={_shell_word(value)}"
            for name, value in assignment.variables.items()
        ]
    return "\n".join([*lines, *_partition(plan, partition_note)]) + "\n"


def as_object(plan: Plan, partition_note: str = "") -> dict[str, Any]:
    """Return the same as an object for JSON."""
    topology = plan.topology
    partition = plan.partition
    return {
        "format": "poprun-dry-run",
        "version": 1,
        "command": list(map(json_text, plan.printed_argv())),
        "program": list(map(json_text, words_of(plan.request.programs))),
        "num_instances": topology.num_instances,
        "num_replicas": topology.num_replicas,
        "ipus_per_replica": topology.ipus_per_replica,
        "num_ilds": topology.num_ilds,
        "mpi": {"title": plan.request.mpi.title, "mpirun": plan.request.mpi.path},
        "partition": None if partition is None else partition.name,
        "partition_note": partition_note or None,
        "instances": [
            {
                "instance": each.rank,
                "host": each.host.name,
                "program": list(map(json_text, each.program.argv)),
                "replicas": list(topology.replicas_of(each.rank)),
                "directory": json_text(each.cwd),
                "cpus": each.binding.cpus,
                "memory_nodes": each.binding.memory_nodes,
                "environment": {
                    name: json_text(value) for name, value in each.variables.items()
                },
            }
            for each in plan.assignments
        ],
    }


def instance_table(plan: Plan) -> str:
    """Return a line for each instance: its host, its replicas and its binding."""
    lines = ["where the instances run:"]
    for assignment in plan.assignments:
        replicas = plan.topology.replicas_of(assignment.rank)
        binding = ", ".join(_binding(assignment)) or "not bound"
        lines.append(
            f"    instance {assignment.rank} on {assignment.host.name}: "
            f"replica{'s' * (len(replicas) > 1)} {format_ranges(replicas)}, {binding}"
        )
    return "\n".join(lines)


def _partition(plan: Plan, note: str) -> list[str]:
    """Return lines about the partition that a job would ask V-IPU for."""
    options, topology = plan.request.partition_options, plan.request.topology
    if options is None:
        return []
    if plan.partition is None:
        return ["", "partition: none", f"  {note}"]
    where = "the inventory of this user on this machine"
    if options.server is not None:
        where = f"the V-IPU server {options.server}"
    lines = [
        "",
        f"partition: {plan.partition.name}",
        f"  asked of {where}",
        f"  for {counted(topology.num_replicas, 'replica')} "
        f"of {counted(topology.ipus_per_replica, 'IPU')} "
        f"in {counted(topology.num_instances, 'instance')}",
    ]
    demands = {
        "ILDs": options.num_ilds,
        "allocation": options.allocation,
        "cluster": options.cluster,
        "IPU-Link routing": options.link_routing,
        "GW-Link routing": options.gateway_routing,
        "sync type": options.sync_type,
    }
    lines += [
        f"  {noun}: {value}" for noun, value in demands.items() if value is not None
    ]
    return [*lines, f"  {note}"] if note else lines


def _log_plan(
    log: Log,
    plan: Plan,
    settings: Settings,
    device_lines: Sequence[tuple[str, str]],
) -> None:
    """Log a plan, as -v and -vv do.

    Args:
        device_lines: The lines about the job's devices, each with its level, I or D.
    """
    if not device_lines:
        given = compact_json(plan.request.target_options)
        log.debug(f"Target options from environment: {given}")
    for level, line in device_lines:
        (log.info if level == "I" else log.debug)(line)
    if not (settings["host"] or settings["hostfile"]):
        log.debug("No hosts specified; ignoring host-subnet setting")
    log.debug("Default network/RNIC for host communication: None")
    log.debug(f"Using {plan.request.mpi.title} ({plan.request.mpi.path})")
    log.info(f"Running command: {command_line(plan)}")


def command_line(plan: Plan) -> str:
    """Return mpirun's command in the original's form.

    The argv of each shim is followed by the argv of its program. Each argument is in
    quotes.
    """
    words = plan.printed_argv()
    return " ".join([words[0], *map(_quoted, words[1:])])


def _shell_word(word: str) -> str:
    """Quote a word so that a shell reads it as it is, and a terminal obeys nothing."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_shell_character, word)) + "'"


def _shell_character(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(character))


def _quoted(word: str) -> str:
    if not word.isprintable():
        return _shell_word(word)
    return "'" + word.replace("'", "'\\''") + "'"


def _binding(assignment: Assignment) -> list[str]:
    binding = assignment.binding
    lines = []
    if binding.cpus is not None:
        lines.append(f"bound to CPUs {format_ranges(binding.cpus)}")
    if binding.memory_nodes is not None:
        nodes = format_ranges(binding.memory_nodes)
        lines.append(f"allocates memory on NUMA nodes {nodes}")
    return lines
