"""What a client is told of a job: its plan and its events -> JSON values."""

import json
import os
import time
from collections.abc import Callable
from typing import Any

from poprun.helpers.processes import exit_code
from poprun.options.programs import words_of
from poprun.plan.values import Plan
from poprun.supervise.group_calls import GroupCalls
from poprun.supervise.stopping import Phase
from poprun.wire.events import (
    Event,
    Exited,
    HostLost,
    Refused,
    ShimLost,
    Started,
    UsageMeasured,
)
from poprun.words import json_text

# Of the JSON values; it grows when a field is taken away or means something else.
VERSION = 1


class _InstanceState:
    """How far an instance is, and what it used when it was last measured."""

    def __init__(self) -> None:
        self.pid: int | None = None
        # On poprun's clock.
        self.started: float | None = None
        self.ended: float | None = None
        self.exit_code: int | None = None
        self.usage: UsageMeasured | None = None

    @property
    def phase(self) -> str:
        if self.ended is not None:
            return "ended"
        return "waiting" if self.started is None else "running"


class JobView:
    """One job, as its clients see it.

    Args:
        last_line: Returns the last line that an instance has written.
    """

    def __init__(self, plan: Plan, last_line: Callable[[int], str]) -> None:
        self._plan = plan
        self._last_line = last_line
        self._began = time.monotonic()
        self._began_at = time.time()
        self._instances = [_InstanceState() for _ in plan.assignments]
        self._group_calls = GroupCalls()
        names = (assignment.host.name for assignment in plan.assignments)
        self.hosts = list(dict.fromkeys(names))

    @property
    def num_instances(self) -> int:
        return len(self._instances)

    def listen(self, event: Event) -> None:
        now = time.monotonic()
        match event:
            case Started(rank=rank, pid=pid):
                instance = self._instances[rank]
                instance.pid, instance.started = pid, now
            case Exited(rank=rank, status=status):
                self._instances[rank].exit_code = exit_code(status)
                self._end(rank, now)
            case Refused(rank=rank) | ShimLost(rank=rank):
                self._end(rank, now)
            case HostLost(ranks=ranks):
                for rank in ranks:
                    self._end(rank, now)
            case UsageMeasured(rank=rank):
                self._instances[rank].usage = event
                self._group_calls.note(event)

    def _end(self, rank: int, now: float) -> None:
        if self._instances[rank].ended is None:
            self._instances[rank].ended = now

    def has_ended(self, rank: int) -> bool:
        return self._instances[rank].ended is not None

    def as_json(self, phase: Phase | None, *, with_instances: bool) -> bytes:
        """Return the job as JSON.

        Args:
            phase: That of the attempt, None between two.
        """
        plan, topology = self._plan, self._plan.topology
        phases = [instance.phase for instance in self._instances]
        num_ipus = topology.num_ipus if plan.partition is not None else 0
        value: dict[str, Any] = {
            "version": VERSION,
            "id": plan.request.identity,
            "attempt": plan.attempt.number,
            "pid": os.getpid(),
            # In JSON there are no bytes, and no surrogates that stand for them.
            "program": list(map(json_text, words_of(plan.request.programs))),
            "directory": plan.assignments[0].cwd,
            "started": self._began_at,
            "elapsed": time.monotonic() - self._began,
            "phase": self._phase(phase, phases),
            # What poprun does before the first attempt.
            "step": "",
            "hosts": self.hosts,
            "num_instances": self.num_instances,
            "num_running": phases.count("running"),
            "num_ended": phases.count("ended"),
            "num_replicas": topology.num_replicas,
            "num_ipus": num_ipus,
            "partition": plan.partition.name if plan.partition is not None else None,
            "output_directory": self._output_directory(),
        }
        if with_instances:
            ranks = range(self.num_instances)
            value["instances"] = [self._describe_instance(rank) for rank in ranks]
        return json.dumps(value).encode()

    def _describe_instance(self, rank: int) -> dict[str, Any]:
        instance, plan = self._instances[rank], self._plan
        replicas = plan.topology.replicas_of(rank)
        usage = instance.usage
        if instance.phase != "running":
            usage = None
        if usage is not None:
            usage = self._group_calls.complete(usage)
        elapsed = None
        if instance.started is not None:
            ended = time.monotonic() if instance.ended is None else instance.ended
            elapsed = ended - instance.started
        return {
            "index": rank,
            "program": json_text(plan.request.program_of(rank).name),
            "host": plan.assignments[rank].host.name,
            "is_local": plan.request.facts_of(rank).is_own_host,
            "pid": instance.pid,
            "phase": instance.phase,
            "elapsed": elapsed,
            "exit_code": instance.exit_code,
            "first_replica": replicas.start,
            "num_replicas": len(replicas),
            "num_ipus": plan.topology.ipus_per_instance if plan.partition else 0,
            "cpu_seconds": usage.cpu_s if usage else None,
            "memory_kib": usage.memory_kib if usage else None,
            "num_processes": usage.num_processes if usage else None,
            "num_calls": usage.num_calls if usage and usage.num_groups else None,
            "total_bytes": usage.total_bytes if usage and usage.num_groups else None,
            "call": _describe_call(usage) if usage else None,
            "last_line": self._last_line(rank),
        }

    def _phase(self, phase: Phase | None, phases: list[str]) -> str:
        if phase is None:
            return "restarting"
        if phase is not Phase.RUNNING:
            return "stopping" if phase < Phase.LEAVING else "ending"
        return "starting" if "waiting" in phases else "running"

    def _output_directory(self) -> str | None:
        folder = self._plan.request.output_folder
        if folder is None:
            return None
        name = folder.of_attempt(self._plan.attempt.number)
        return os.fsencode(os.path.abspath(name)).decode(errors="backslashreplace")


def _describe_call(usage: UsageMeasured) -> dict[str, Any] | None:
    """Return the collective that an instance is in, None if it is in none."""
    if not usage.operation:
        return None
    return {
        "operation": usage.operation,
        "bytes": usage.call_bytes,
        "waited": usage.waited_s,
        "missing": usage.missing,
    }
