"""Plans of jobs as tests need them: made without a look at this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from poprun.host_specs import HostSpec
from poprun.mpirun.openmpi import OpenMpi5
from poprun.options.programs import Program
from poprun.plan.assignments import make_plan
from poprun.plan.host_facts import HostFacts, Machine, Node
from poprun.plan.placement import Binding
from poprun.plan.topology import Topology
from poprun.plan.values import Assignment, Attempt, PartitionVariables, Plan, Request

FIRST = Attempt(
    number=0,
    num_failures=0,
    name="cafe.0",
    control="@poprun-babe/key",
    arena="beef",
    master_port=4711,
    links_port=4712,
    links_key="f00d",
)
MPI = OpenMpi5(path="/opt/bin/mpirun", version="5")
FACTS = HostFacts(
    machine=Machine(nodes=(Node(index=0, cpus=(0,)),)),
    free_port=4711,
    links_port=4712,
    cwd="/",
)


def make_request(
    topology: Topology,
    hosts: Sequence[HostSpec] = (HostSpec(name="localhost"),),
    facts: Sequence[HostFacts] = (FACTS,),
    *,
    bindings: Sequence[Binding] = (),
    directories: Sequence[str] = (),
    threads: Sequence[int] = (),
    exports: Mapping[str, str] | None = None,
    instance_exports: Mapping[int, Mapping[str, str]] | None = None,
    **fields: Any,
) -> Request:
    """Return a request; the sequences are in rank order, and empty for the defaults."""
    program = Program(argv=("program",), instances=range(topology.num_instances))
    [program] = fields.setdefault("programs", [program])
    fields.setdefault("mpi", MPI)
    assignments = [
        Assignment(
            rank=rank,
            program=program,
            host=hosts[topology.host_of(rank)],
            facts=facts[topology.host_of(rank)],
            binding=bindings[rank] if bindings else Binding(),
            directory=directories[rank] if directories else None,
            threads=threads[rank] if threads else None,
            exports={**(exports or {}), **(instance_exports or {}).get(rank, {})},
        )
        for rank in range(topology.num_instances)
    ]
    return Request(
        identity="cafe",
        topology=topology,
        hosts=hosts,
        facts=facts,
        assignments=assignments,
        **fields,
    )


def running(plan: Plan, argv: Sequence[str]) -> Plan:
    """Return a plan whose instances run another program."""
    assignments = [
        replace(each, program=replace(each.program, argv=argv))
        for each in plan.assignments
    ]
    return replace(plan, assignments=assignments)


def planned(request: Request, partition: PartitionVariables | None = None) -> Plan:
    return make_plan(request, FIRST, partition)
