"""Plans of jobs as tests need them: made without a look at this machine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from poprun.host_specs import HostSpec
from poprun.mpirun.openmpi import OpenMpi5
from poprun.options.programs import Program
from poprun.plan.assignments import make_plan
from poprun.plan.host_facts import HostFacts, Machine, Node
from poprun.plan.placement import Binding
from poprun.plan.topology import Topology
from poprun.plan.values import Attempt, PartitionVariables, Plan, Request

FIRST = Attempt(
    number=0, name="cafe.0", control="@poprun-babe/key", arena="beef", master_port=4711
)
MPI = OpenMpi5(path="/opt/bin/mpirun", version="5")
FACTS = HostFacts(
    machine=Machine(nodes=(Node(index=0, cpus=(0,)),)), free_port=4711, cwd="/"
)


def make_request(
    topology: Topology,
    hosts: Sequence[HostSpec] = (HostSpec(name="localhost"),),
    facts: Sequence[HostFacts] = (FACTS,),
    **fields: Any,
) -> Request:
    fields.setdefault("bindings", [Binding()] * topology.num_instances)
    fields.setdefault("directories", [None] * topology.num_instances)
    fields.setdefault("mpi", MPI)
    program = Program(argv=("program",), instances=range(topology.num_instances))
    fields.setdefault("programs", [program])
    return Request(
        identity="cafe", topology=topology, hosts=hosts, facts=facts, **fields
    )


def running(plan: Plan, program: Sequence[str]) -> Plan:
    """Return a plan whose instances run another program."""
    assignments = [replace(each, program=program) for each in plan.assignments]
    return replace(plan, assignments=assignments)


def planned(request: Request, partition: PartitionVariables | None = None) -> Plan:
    return make_plan(request, FIRST, partition)
