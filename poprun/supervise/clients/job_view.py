"""A job as clients see it: its plan and its events -> JSON values."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from poprun.helpers.processes import exit_code
from poprun.options.programs import words_of
from poprun.plan.values import Plan
from poprun.supervise.group_calls import GroupCalls
from poprun.supervise.job_state import Phase
from poprun.wire.events import (
    Event,
    Exited,
    HostLost,
    MembersChanged,
    Refused,
    ShimLost,
    Started,
    StartedAgain,
    UsageMeasured,
)
from poprun.words import json_text

# The version of the JSON values: it grows when a field is removed or redefined.
VERSION = 1


@dataclass(slots=True)
class _InstanceState:
    """The state of an instance, with its usage at the last measurement."""

    pid: int | None = None
    # On poprun's clock.
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    usage: UsageMeasured | None = None

    @property
    def phase(self) -> str:
        if self.ended is not None:
            return "ended"
        return "waiting" if self.started is None else "running"


class JobView:
    """A job before its first attempt, as its clients see it: it has no plan yet.

    Args:
        fields: Fields of its JSON value, besides those that are the same for all jobs.
    """

    def __init__(self, *, program: Sequence[str], directory: str, **fields: Any):
        self._began = time.monotonic()
        # In JSON there are no bytes, and no surrogates that stand for them.
        self.fields: dict[str, Any] = {
            "version": VERSION,
            "id": "",
            "attempt": 0,
            "pid": os.getpid(),
            "program": list(map(json_text, program)),
            "directory": json_text(directory),
            "started": time.time(),
            "elapsed": 0.0,
            "phase": "preparing",
            "step": "",
            "hosts": (),
            "num_instances": 0,
            "num_running": 0,
            "num_ended": 0,
            "generation": 0,
            "changed": "",
            "joining": {},
            "num_replicas": 0,
            "num_ipus": 0,
            "partition": None,
            "output_directory": None,
            **fields,
        }

    @property
    def num_instances(self) -> int:
        """How many instances it has, 0 if that is not known yet."""
        return int(self.fields["num_instances"])

    @property
    def names_hosts(self) -> bool:
        """Whether instances may run on other hosts."""
        return False

    def listen(self, event: Event) -> None:
        """Take in an event of the job."""

    def has_ended(self, rank: int) -> bool:
        return False

    def as_json(self, phase: Phase | None, *, with_instances: bool) -> bytes:
        """Return the job as JSON.

        Args:
            phase: The phase of the attempt, None between two attempts.
        """
        elapsed = time.monotonic() - self._began
        value = {**self.fields, "elapsed": elapsed, **self._progress(phase)}
        if with_instances:
            value["instances"] = self._describe_instances()
        return json.dumps(value).encode()

    def _progress(self, phase: Phase | None) -> dict[str, Any]:
        """Return the fields that follow from the events of an attempt."""
        return {}

    def _describe_instances(self) -> list[dict[str, Any]]:
        return []


class AttemptView(JobView):
    """A job in one of its attempts.

    Args:
        last_line: Returns the last line that an instance has written.
        changed: Why the attempt before this one has ended, "" for the first.
    """

    def __init__(
        self, plan: Plan, last_line: Callable[[int], str], changed: str = ""
    ) -> None:
        partition = plan.partition
        super().__init__(
            id=plan.request.identity,
            attempt=plan.attempt.number,
            program=words_of(plan.request.programs),
            directory=plan.assignments[0].cwd,
            hosts=_host_names(plan, range(len(plan.assignments))),
            num_instances=len(plan.assignments),
            num_replicas=plan.topology.num_replicas,
            num_ipus=0 if partition is None else plan.topology.num_ipus,
            partition=None if partition is None else partition.name,
            output_directory=_output_directory(plan),
            changed=json_text(changed),
        )
        self._plan = plan
        self._last_line = last_line
        self._instances = [_InstanceState() for _ in plan.assignments]
        self._group_calls = GroupCalls()
        # By instance: its rank in the last generation that it belonged to.
        self._ranks = {rank: rank for rank in range(len(plan.assignments))}
        self._members: Sequence[int] = range(len(plan.assignments))
        # The instances that were started later and have not joined the members yet.
        self._newcomers: set[int] = set()

    def extend(self, plan: Plan, ranks: Sequence[int]) -> None:
        """Take in the plan with the instances of a host that joins."""
        self._plan = plan
        self.fields["num_instances"] = len(plan.assignments)
        missing = len(plan.assignments) - len(self._instances)
        self._instances += [_InstanceState() for _ in range(missing)]
        for rank in ranks:
            self._instances[rank] = _InstanceState()
            self._ranks.setdefault(rank, rank)
        self._newcomers.update(ranks)

    @property
    def names_hosts(self) -> bool:
        return self._plan.request.names_hosts

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
            case StartedAgain(rank=rank):
                self._instances[rank] = _InstanceState()
                self._newcomers.add(rank)
            case MembersChanged():
                self._members = event.members
                self._newcomers.difference_update(event.members)
                self._ranks |= {rank: i for i, rank in enumerate(event.members)}
                self.fields["generation"] = event.generation
                self.fields["changed"] = event.why
                self.fields["hosts"] = _host_names(self._plan, event.members)
                local = self._plan.topology.local_replicas
                self.fields["num_replicas"] = local * len(event.members)
            case UsageMeasured(rank=rank):
                self._instances[rank].usage = event
                self._group_calls.note(event)

    def _end(self, rank: int, now: float) -> None:
        if self._instances[rank].ended is None:
            self._instances[rank].ended = now

    def has_ended(self, rank: int) -> bool:
        return self._instances[rank].ended is not None

    def _progress(self, phase: Phase | None) -> dict[str, Any]:
        phases = [instance.phase for instance in self._instances]
        return {
            "phase": _name_phase(phase, phases),
            "num_running": phases.count("running"),
            "num_ended": phases.count("ended"),
            "joining": {
                rank: self._elapsed(rank)
                for rank in sorted(self._newcomers)
                if phases[rank] == "running"
            },
        }

    def _elapsed(self, rank: int) -> float | None:
        """Return how long the program of an instance has run, None before its start."""
        instance = self._instances[rank]
        if instance.started is None:
            return None
        ended = time.monotonic() if instance.ended is None else instance.ended
        return ended - instance.started

    def _describe_instances(self) -> list[dict[str, Any]]:
        return [self._describe_instance(rank) for rank in range(self.num_instances)]

    def _describe_instance(self, rank: int) -> dict[str, Any]:
        instance, plan = self._instances[rank], self._plan
        place, local = self._ranks[rank], plan.topology.local_replicas
        usage = None
        if instance.phase == "running" and instance.usage is not None:
            usage = self._group_calls.complete(instance.usage)
        return {
            "index": rank,
            "program": json_text(plan.assignments[rank].program.name),
            "host": plan.assignments[rank].host.name,
            "is_local": plan.assignments[rank].facts.is_own_host,
            "pid": instance.pid,
            "phase": instance.phase,
            "elapsed": self._elapsed(rank),
            "exit_code": instance.exit_code,
            "rank": place if rank in self._members else None,
            "first_replica": place * local,
            "num_replicas": local,
            "num_ipus": plan.topology.ipus_per_instance if plan.partition else 0,
            "cpu_seconds": usage.cpu_s if usage else None,
            "memory_kib": usage.memory_kib if usage else None,
            "num_processes": usage.num_processes if usage else None,
            "num_calls": usage.num_calls if usage and usage.num_groups else None,
            "total_bytes": usage.total_bytes if usage and usage.num_groups else None,
            "call": _describe_call(usage) if usage else None,
            "last_line": self._last_line(rank),
        }


def _host_names(plan: Plan, ranks: Sequence[int]) -> list[str]:
    return list(dict.fromkeys(plan.assignments[rank].host.name for rank in ranks))


def _name_phase(phase: Phase | None, phases: list[str]) -> str:
    if phase is None:
        return "restarting"
    if phase is not Phase.RUNNING:
        return "stopping" if phase < Phase.LEAVING else "ending"
    return "starting" if "waiting" in phases else "running"


def _output_directory(plan: Plan) -> str | None:
    folder = plan.request.output_folder
    if folder is None:
        return None
    return json_text(os.path.abspath(folder.of_attempt(plan.attempt.number)))


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
