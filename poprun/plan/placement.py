"""Chooses the CPUs and the memory nodes of each instance. Pure.

reach/own_host/numa_nodes.py reads the description of the machine, and the shim binds
the instance. A CPU is one that the kernel counts: a hardware thread.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import lcm
from typing import TypeVar

from poprun.plan.host_facts import Machine

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The CPUs and memory nodes of one instance; None for the caller's."""

    cpus: tuple[int, ...] | None = None
    memory_nodes: tuple[int, ...] | None = None


def choose_strategy(
    numa_aware: bool | None, process_placement: str | None, instances_per_host: int
) -> str:
    """Return the strategy that two options, of two generations, ask for."""
    if process_placement is not None:
        return process_placement
    if numa_aware is not None:
        return "roundrobin" if numa_aware else "disabled"
    return "spreadnuma" if instances_per_host > 1 else "disabled"


def place(strategy: str, count: int, machine: Machine) -> list[Binding]:
    """Return the binding of each of the `count` instances of one host."""
    if strategy == "disabled":
        return [Binding()] * count
    cpus_of = _STRATEGIES[strategy]
    return [_bound_to(cpus_of(machine, k, count), machine) for k in range(count)]


def fair_threads(bindings: Sequence[Binding], machine: Machine) -> list[int]:
    """Return how many threads each instance may start without crowding the others.

    A CPU that several instances may use counts in equal parts for each of them.
    """
    masks = [
        machine.cpus if binding.cpus is None else binding.cpus for binding in bindings
    ]
    users = Counter(cpu for mask in masks for cpu in mask)
    # In whole numbers, because twelve times a sixth is less than two in floats.
    unit = lcm(*users.values())
    return [max(1, sum(unit // users[cpu] for cpu in mask) // unit) for mask in masks]


# The CPUs of the k-th of `count` instances. --numa-aware=yes asks for roundrobin.
_STRATEGIES: dict[str, Callable[[Machine, int, int], Collection[int]]] = {
    "spreadnuma": lambda machine, k, count: [
        cpu for node in _share(machine.nodes, k, count) for cpu in node.cpus
    ],
    "roundrobin": lambda machine, k, _: machine.nodes[k % len(machine.nodes)].cpus,
    "spreadcores": lambda machine, k, count: _share(machine.cpus, k, count),
}


def _share(items: Sequence[Item], k: int, count: int) -> Sequence[Item]:
    """Return the k-th of `count` shares; with too few items, they are taken in turn."""
    size = len(items)
    if count > size:
        return [items[k % size]]
    return items[k * size // count : (k + 1) * size // count]


def _bound_to(cpus: Collection[int], machine: Machine) -> Binding:
    return Binding(
        cpus=tuple(sorted(cpus)), memory_nodes=_memory_nodes(set(cpus), machine)
    )


def _memory_nodes(cpus: set[int], machine: Machine) -> tuple[int, ...] | None:
    # With one node there is nothing to choose, and seccomp often forbids the call.
    if len(machine.nodes) == 1:
        return None
    near = [node.index for node in machine.nodes if not cpus.isdisjoint(node.cpus)]
    known = tuple(index for index in near if index is not None)
    return known if len(known) == len(near) else None
