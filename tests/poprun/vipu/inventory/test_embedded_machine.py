"""An inventory and a plain model of it, under any sequence of operations."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from vipu_servers import Server, serving

from poprun.vipu import liveness
from poprun.vipu.errors import InUseError, MismatchError, NoSpaceError
from poprun.vipu.inventory import machines
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.leases import Acquisition, Grant, Holder
from poprun.vipu.model import (
    Block,
    Partition,
    PartitionChange,
    PartitionRequest,
    next_power_of_two,
)
from poprun.vipu.rules import numbering, presets

SIZE = 128
ME = liveness.identify()
GONE = replace(ME, start_time=1)
SIZES = st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128])


class Machine(RuleBasedStateMachine):
    """Two racks, kept partitions, and jobs that end or die."""

    kept = Bundle("kept")
    jobs = Bundle("jobs")

    @initialize()
    def open(self) -> None:
        self.open_inventory()
        self.number = 0
        # What must be there: partitions by name, and what each lease holds of them.
        self.expected: dict[str, Partition] = {}
        self.grants: dict[str, Grant] = {}
        self.dead: set[str] = set()

    def open_inventory(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        path = Path(self.directory.name) / "inventory.db"
        self.store = self.inventory = EmbeddedInventory(path, host="h1")
        self.inventory.create_cluster(presets.preset("pod128"))

    def close_inventory(self) -> None:
        self.inventory.close()
        self.directory.cleanup()

    def num_gcds(self, size: int) -> int:
        """Return how few GCDs a partition can have."""
        return 1

    def settle(self) -> None:
        """Wait for what the inventory does by itself."""

    def name(self) -> str:
        self.number += 1
        return f"P{self.number}"

    def bury(self) -> None:
        """Expect what dead jobs held to be gone."""
        for lease in self.dead:
            grant = self.grants.pop(lease)
            if grant.created:
                del self.expected[grant.partition.name]
        self.dead.clear()

    def fits(self, size: int, ilds: int | None = None, but: str = "") -> bool:
        """Look at every place where a partition could be."""
        taken = {
            position
            for partition in self.expected.values()
            if partition.name != but
            for position in numbering.positions(partition)
        }
        racks = ilds or -(-size // 64)
        share = size // racks
        return any(
            all(
                64 * (rack + n) + place + ipu not in taken
                for n in range(racks)
                for ipu in range(share)
            )
            for rack in range(0, 2, racks)
            for place in range(0, 64, share)
        )

    def works(self, possible: Callable[[], bool]) -> bool:
        """Return whether an operation works, at once or when the dead are gone."""
        if possible():
            return True
        self.bury()
        return possible()

    def used(self, name: str) -> bool:
        return any(g.partition.name == name for g in self.grants.values())

    @rule(target=kept, size=SIZES, ilds=st.sampled_from([None, 2]), kind=st.booleans())
    def create(self, size: int, ilds: int | None, kind: bool) -> object:
        if ilds == 2 and size == 1:
            ilds = None
        request = PartitionRequest(
            name=self.name(),
            size=size,
            num_ilds=ilds,
            num_gcds=size if ilds else self.num_gcds(size),
            reconfigurable=kind and not ilds and self.num_gcds(size) == 1,
        )
        works = self.works(lambda: self.fits(size, ilds))
        try:
            made = self.inventory.create_partition(request)
        except NoSpaceError:
            assert not works
            return multiple()
        assert works
        self.expected[made.name] = made
        return made.name

    @rule(target=jobs, size=SIZES, dies=st.booleans())
    def launch(self, size: int, dies: bool) -> object:
        name = self.name()
        gcds = self.num_gcds(size)
        request = PartitionRequest(name=name, size=size, num_gcds=gcds)
        works = self.works(lambda: self.fits(size))
        try:
            grant = self.inventory.acquire(self.asked(name, size, dies, request))
        except NoSpaceError:
            assert not works
            return multiple()
        assert works
        return self.note(grant, dies)

    @rule(target=jobs, name=kept, children=st.integers(1, 5), dies=st.booleans())
    def use(self, name: str, children: int, dies: bool) -> object:
        if name not in self.expected:
            return multiple()
        partition = self.expected[name]

        def possible() -> bool:
            if not partition.reconfigurable:
                return not self.used(name) and children <= partition.size
            need = next_power_of_two(children)
            taken = {
                ipu
                for grant in self.grants.values()
                if grant.partition.name == name
                for ipu in grant.parent.ipus
            }
            return any(
                taken.isdisjoint(range(first, first + need))
                for first in range(0, partition.size - need + 1, need)
            )

        works = self.works(possible)
        asked = replace(self.asked(name, 1, dies, None), num_children=children)
        try:
            grant = self.inventory.acquire(asked)
        except (InUseError, MismatchError):
            assert not works
            return multiple()
        assert works
        return self.note(grant, dies)

    @rule(lease=consumes(jobs))
    def end(self, lease: str) -> None:
        self.inventory.release(lease)
        grant = self.grants.pop(lease, None)
        self.dead.discard(lease)
        if grant is not None and grant.created:
            del self.expected[grant.partition.name]

    @rule(name=kept, size=SIZES)
    def resize(self, name: str, size: int) -> None:
        gcds = self.num_gcds(size)
        if name not in self.expected or (
            gcds > 1 and self.expected[name].reconfigurable
        ):
            return
        # Its ILDs stay as far as they can: each has a GCD or more.
        ilds = max(min(size, gcds, self.expected[name].num_ilds), -(-size // 64))
        works = self.works(
            lambda: not self.used(name) and self.fits(size, ilds, but=name)
        )
        change = PartitionChange(size=size, num_gcds=gcds)
        try:
            changed = self.inventory.update_partition(name, change)
        except (InUseError, NoSpaceError):
            assert not works
        else:
            assert works
            assert changed.size == size
            self.expected[name] = changed

    @rule(name=consumes(kept))
    def remove(self, name: str) -> None:
        if name not in self.expected:
            return
        works = self.works(lambda: not self.used(name))
        try:
            self.inventory.remove_partition(name)
        except InUseError:
            assert not works
        else:
            assert works
            del self.expected[name]

    def asked(
        self, name: str, size: int, dies: bool, create: PartitionRequest | None
    ) -> Acquisition:
        process = GONE if dies else ME
        return Acquisition(
            holder=Holder(user="alice", job="j", host="h1", process=process),
            partition=name,
            num_children=1,
            ipus_per_child=size,
            create=create,
        )

    def note(self, grant: Grant, dies: bool) -> str:
        if grant.created:
            self.expected[grant.partition.name] = grant.partition
        self.grants[grant.lease.id] = grant
        if dies:
            self.dead.add(grant.lease.id)
        return grant.lease.id

    @invariant()
    def nothing_is_held_twice_and_what_is_freed_is_free(self) -> None:
        if not hasattr(self, "inventory"):
            return
        self.settle()
        with self.store._database.transaction(write=False):
            blocks = machines.list_free_blocks(self.store._db, "pod128")
        free = {position for block in blocks for position in block.positions}
        held: set[int] = set()
        for partition in self.expected.values():
            assert partition.size.bit_count() == 1
            for block in partition.blocks:
                assert block.first % block.size == 0
                assert held.isdisjoint(block.positions)
                held |= set(block.positions)
        parents: dict[str, set[int]] = {}
        for grant in self.grants.values():
            assert grant.parent.first % grant.parent.num_ipus == 0
            taken = parents.setdefault(grant.partition.name, set())
            assert taken.isdisjoint(grant.parent.ipus)
            taken |= set(grant.parent.ipus)
        assert held.isdisjoint(free)
        assert held | free == set(range(SIZE))

    @precondition(lambda self: hasattr(self, "inventory"))
    @rule()
    def look(self) -> None:
        listed = {p.name: shown(p) for p in self.inventory.list_partitions()}
        self.bury()

        assert listed == {name: shown(p) for name, p in self.expected.items()}
        reserved = self.inventory.list_reservations()
        assert {r.lease.id[:8] for r in reserved} == {id[:8] for id in self.grants}

    def teardown(self) -> None:
        if not hasattr(self, "inventory"):
            return
        for lease in self.grants:
            self.inventory.release(lease)
        for partition in self.inventory.list_partitions():
            self.inventory.remove_partition(partition.name)
        assert self.inventory.list_free_blocks("pod128") == (Block(first=0, size=SIZE),)
        self.close_inventory()


def shown(partition: Partition) -> Partition:
    """Return a partition as lists show it: with a part of the id of its lease."""
    return replace(partition, lease=partition.lease and partition.lease[:8])


class ServedMachine(Machine):
    """The same through a server, which also ends the leases of the dead by itself."""

    server: Server

    def open_inventory(self) -> None:
        self.inventory = self.server.inventory()
        self.store = EmbeddedInventory(self.server.database, host="h1")

    def close_inventory(self) -> None:
        self.inventory.close()
        self.store.close()

    def num_gcds(self, size: int) -> int:
        return 2 if size > 64 else 1  # a server keeps the rules of the original

    def settle(self) -> None:
        self.inventory.end_dead_leases()
        self.bury()


class TestServedInventory(ServedMachine.TestCase):  # type: ignore[misc,name-defined]
    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.TemporaryDirectory()
        database = Path(cls.directory.name) / "server.db"
        cls.serving = serving(database, "--pod=pod128")
        ServedMachine.server = cls.serving.__enter__()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.serving.__exit__(None, None, None)
        cls.directory.cleanup()


TestInventory = Machine.TestCase
TestInventory.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestServedInventory.settings = settings(TestInventory.settings, max_examples=20)
