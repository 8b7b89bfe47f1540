"""Leases end when they are released, or when their holders are gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from poprun.vipu import liveness
from poprun.vipu.errors import (
    DeviceError,
    InUseError,
    LeaseEndedError,
    NameTakenError,
    NoSpaceError,
    UnknownNameError,
    VipuRuleError,
)
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.leases import PARENT, Acquisition, Grant, Holder, Life, ProcessIdentity
from poprun.vipu.liveness import Observer
from poprun.vipu.model import PartitionRequest

Launch = Callable[..., Grant]


@contextmanager
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def elsewhere(process: ProcessIdentity) -> ProcessIdentity:
    return replace(process, boot_id="another-boot")


def test_a_killed_job_gives_its_ipus_back(
    inventory: EmbeddedInventory, holder: Holder, launch: Launch
) -> None:
    with other_process() as child:
        theirs = replace(holder, job="j2", process=liveness.identify(child.pid))
        grant = launch("P64", replicas=64, holder=theirs)
        with pytest.raises(InUseError, match="job j2"):
            launch("P64", replicas=64)
    again = launch("P64", replicas=64)

    assert again.created
    with pytest.raises(LeaseEndedError):
        inventory.renew(grant.lease.id)


def test_a_killed_job_is_not_listed(
    inventory: EmbeddedInventory, holder: Holder, launch: Launch
) -> None:
    with other_process() as child:
        theirs = replace(holder, process=liveness.identify(child.pid))
        grant = launch("P", holder=theirs)
        assert inventory.end_dead_leases() == ()

    assert inventory.list_partitions() == ()
    assert inventory.list_reservations() == ()
    assert inventory.list_leases() == ()
    assert grant.created


def test_the_partition_of_a_killed_job_is_gone_for_who_asks_by_its_name(
    inventory: EmbeddedInventory, holder: Holder, launch: Launch
) -> None:
    with other_process() as child:
        theirs = replace(holder, process=liveness.identify(child.pid))
        launch("P", holder=theirs)
        assert inventory.get_partition("P").name == "P"

    with pytest.raises(UnknownNameError):
        inventory.get_partition("P")


def test_ipus_stay_held_while_an_instance_outlives_its_poprun(
    inventory: EmbeddedInventory, holder: Holder, launch: Launch
) -> None:
    with other_process() as instance:
        with other_process() as poprun:
            theirs = replace(holder, process=liveness.identify(poprun.pid))
            grant = launch("P", holder=theirs)
            inventory.attach(grant.lease.id, 0, liveness.identify(instance.pid))
        with pytest.raises(InUseError):
            launch("P")
    assert launch("P").created


def test_a_process_of_another_host_is_not_dead_because_it_is_not_seen(
    inventory: EmbeddedInventory, holder: Holder, launch: Launch
) -> None:
    theirs = ProcessIdentity(
        pid=7, start_time=5, boot_id="another boot", pid_namespace="pid:[1]"
    )
    with other_process() as poprun:
        mine = replace(holder, process=liveness.identify(poprun.pid))
        lease = launch("P", holder=mine).lease.id
        # Its host may have the name of this one.
        inventory.attach(lease, 0, theirs, holder.host)
        with pytest.raises(DeviceError, match="because process 7 of the same job"):
            inventory.attach(lease, 0, liveness.identify())

    assert inventory.end_dead_leases() == ()
    [_, attached] = inventory.list_reservations("P")
    assert (attached.process, attached.host) == (theirs, holder.host)
    inventory.detach(lease, 0, theirs)
    [ended] = inventory.end_dead_leases()
    assert ended.id == lease


def test_a_device_is_free_again_when_its_process_has_ended(
    inventory: EmbeddedInventory, holder: Holder, launch: Launch
) -> None:
    lease = launch("P").lease.id
    with other_process() as child:
        theirs = liveness.identify(child.pid)
        device = inventory.attach(lease, 0, theirs)
        with pytest.raises(DeviceError) as refusal:
            inventory.attach(lease, 0, holder.process)
        assert str(refusal.value) == (
            f"Process {os.getpid()} cannot attach to device 0 of instance 0, because "
            f"process {child.pid} of the same job is attached to it. Let one process "
            "of each instance attach, and the others work through it."
        )

    assert inventory.attach(lease, 0, holder.process) == device


class Clock:
    """The time since boot, as a test wants it."""

    def __init__(self) -> None:
        self.now = 5000.0

    def wait(self, inventory: EmbeddedInventory, seconds: int) -> list[str]:
        """Let time pass in which the inventory is looked at; return what has ended."""
        ended = []
        for _ in range(seconds):
            self.now += 1
            ended += inventory.end_dead_leases()
        return [lease.id for lease in ended]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made_up = Clock()
    monkeypatch.setattr(liveness, "time_since_boot", lambda: made_up.now)
    return made_up


@pytest.fixture
def remote(holder: Holder) -> Holder:
    """A job that this machine cannot see."""
    return replace(holder, host="h2", process=elsewhere(holder.process))


def test_the_time_of_a_lease_counts_only_for_holders_out_of_sight(
    clock: Clock, inventory: EmbeddedInventory, remote: Holder, launch: Launch
) -> None:
    here = launch("P")
    there = launch("Q", holder=remote, lease_s=60)
    assert clock.wait(inventory, 59) == []
    inventory.renew(there.lease.id)
    assert clock.wait(inventory, 59) == []

    assert clock.wait(inventory, 2) == [there.lease.id]
    assert [lease.id for lease in inventory.list_leases()] == [here.lease.id]


def test_a_lease_does_not_end_while_its_holder_could_not_renew_it(
    clock: Clock, inventory: EmbeddedInventory, remote: Holder, launch: Launch
) -> None:
    lease = launch("P", holder=remote, lease_s=60).lease.id
    clock.wait(inventory, 10)
    clock.now += 3600  # the machine is asleep, or the database locked
    assert inventory.end_dead_leases() == ()
    with pytest.raises(InUseError, match="job j1, host h2"):
        launch("P")

    inventory.renew(lease)
    assert clock.wait(inventory, 59) == []
    assert clock.wait(inventory, 2) == [lease]


def test_a_lease_is_released_late_only_for_instances_on_other_hosts(
    clock: Clock, inventory: EmbeddedInventory, holder: Holder, launch: Launch
) -> None:
    with other_process() as poprun:
        mine = replace(holder, process=liveness.identify(poprun.pid))
        there = launch("P", holder=mine, spans_hosts=True).lease.id
        here = launch("Q", holder=mine).lease.id
        inventory.attach(here, 0, mine.process)
    inventory.release(here, wait_s=16)
    inventory.release(there, wait_s=16)

    assert [lease.id for lease in inventory.list_leases()] == [there]
    assert clock.wait(inventory, 15) == []
    with pytest.raises(InUseError):
        launch("P")
    assert clock.wait(inventory, 2) == [there]


def test_instances_on_other_hosts_may_outlive_all_that_is_seen_of_their_job(
    clock: Clock, inventory: EmbeddedInventory, holder: Holder, launch: Launch
) -> None:
    dead = replace(holder, process=replace(holder.process, start_time=1))
    lease = launch("P", holder=dead, lease_s=60, spans_hosts=True).lease.id

    assert clock.wait(inventory, 59) == []
    assert clock.wait(inventory, 2) == [lease]


@pytest.mark.parametrize("jump", [-4000.0, 1e9])
def test_a_clock_that_jumps_ends_no_lease(
    clock: Clock,
    inventory: EmbeddedInventory,
    remote: Holder,
    launch: Launch,
    jump: float,
) -> None:
    lease = launch("P", holder=remote, lease_s=60).lease.id
    clock.now += jump
    assert clock.wait(inventory, 30) == []

    assert clock.wait(inventory, 31) == [lease]


def test_a_server_that_was_away_begins_where_it_stopped(
    clock: Clock, path: Path, remote: Holder, launch: Launch
) -> None:
    lease = launch("P", holder=remote, lease_s=60).lease.id
    for _ in range(20):
        server = EmbeddedInventory(path, host="", longest_step_s=2)
        clock.now += 600
        assert server.end_dead_leases() == ()
        server.close()
    server = EmbeddedInventory(path, host="", longest_step_s=2)

    assert clock.wait(server, 19) == []
    assert clock.wait(server, 2) == [lease]
    server.close()


def test_without_a_server_dead_holders_out_of_sight_are_gone_after_a_few_looks(
    clock: Clock, inventory: EmbeddedInventory, remote: Holder, launch: Launch
) -> None:
    launch("P", holder=remote, lease_s=60)
    for _ in range(2):
        clock.now += 3600
        assert inventory.end_dead_leases() == ()
    clock.now += 3600

    assert launch("P").created


def test_leases_of_other_hosts_outlive_a_reboot_of_this_one(
    clock: Clock,
    path: Path,
    holder: Holder,
    remote: Holder,
    inventory: EmbeddedInventory,
    launch: Launch,
) -> None:
    local = replace(holder, process=elsewhere(holder.process))
    there = launch("P", holder=remote)
    launch("Q", holder=local)
    with inventory._database.transaction(write=True):
        inventory._db.execute("UPDATE lease_clock SET boot_id = 'another-boot'")
    clock.now += 3600
    again = EmbeddedInventory(path, host="h1", longest_step_s=1e9)

    assert [lease.id for lease in again.list_leases()] == [there.lease.id]
    again.close()


def test_a_partition_that_a_job_made_stays_while_another_job_uses_it(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    make = PartitionRequest(name="p64", size=64, reconfigurable=True)
    first = launch("p64", create=make)
    second = launch("p64", create=None)
    inventory.release(first.lease.id)

    assert inventory.get_partition("p64").lease == second.lease.id
    inventory.release(second.lease.id)
    assert inventory.list_partitions() == ()


def test_a_long_wait_ends_no_lease_of_a_living_process(
    clock: Clock, inventory: EmbeddedInventory, launch: Launch
) -> None:
    grant = launch("P", lease_s=1)
    clock.wait(inventory, 100)

    assert inventory.get_partition("P").lease == grant.lease.id


@pytest.fixture
def served(path: Path, inventory: EmbeddedInventory) -> Iterator[EmbeddedInventory]:
    """The inventory as a server opens it, whose machine has no name of a holder."""
    opened = EmbeddedInventory(path, host="", longest_step_s=2)
    yield opened
    opened.close()


@pytest.mark.parametrize("looks", [0, 1])
def test_a_server_has_the_room_of_a_dead_holder_at_once(
    served: EmbeddedInventory, holder: Holder, launch: Launch, looks: int
) -> None:
    with other_process() as child:
        theirs = replace(holder, process=liveness.identify(child.pid))
        asked = Acquisition(
            holder=theirs,
            partition="P",
            num_children=1,
            ipus_per_child=64,
            create=PartitionRequest(name="P", size=64),
        )
        served.acquire(asked)
        other = replace(asked, holder=holder, partition="Q")
        other = replace(other, create=PartitionRequest(name="Q", size=64))
        for _ in range(looks):
            served.end_dead_leases()
        with pytest.raises(NoSpaceError):
            served.acquire(other)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

        assert served.acquire(other).created
    assert [p.name for p in served.list_partitions()] == ["Q"]


def test_a_server_looks_at_all_holders_on_its_machine(
    served: EmbeddedInventory, holder: Holder
) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(other_process()) for _ in range(4)]
        for child in children:
            process = liveness.identify(child.pid)
            served.acquire(
                Acquisition(
                    holder=replace(holder, process=process),
                    partition=f"P{child.pid}",
                    num_children=1,
                    ipus_per_child=1,
                    create=PartitionRequest(name=f"P{child.pid}", size=1),
                )
            )
        assert len(served.list_partitions()) == 4
        for number, child in enumerate(children, start=1):
            os.kill(child.pid, signal.SIGKILL)
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

            assert len(served.list_partitions()) == 4 - number


# A look is due for other reasons when a second has passed.
@pytest.mark.usefixtures("clock")
def test_a_refusal_looks_at_no_lease_of_another_machine(
    served: EmbeddedInventory,
    holder: Holder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = replace(holder.process, boot_id="another")
    asked = Acquisition(
        holder=replace(holder, process=elsewhere),
        partition="P",
        num_children=1,
        ipus_per_child=64,
        create=PartitionRequest(name="P", size=64),
    )
    served.acquire(asked)

    def look(*_: object) -> NoReturn:
        raise AssertionError("It looked at all leases.")

    monkeypatch.setattr(Observer, "life", look)
    with pytest.raises(NoSpaceError):
        served.acquire(
            replace(asked, partition="Q", create=PartitionRequest(name="Q", size=64))
        )
    assert len(served.list_partitions()) == 1


def refused(inventory: EmbeddedInventory, asked: Acquisition) -> bool:
    with suppress(NoSpaceError):
        inventory.acquire(asked)
        return False
    return True


def test_requests_together_share_a_look_for_dead_holders(
    served: EmbeddedInventory, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Acquisition(
        holder=holder,
        partition="P",
        num_children=1,
        ipus_per_child=32,
        create=PartitionRequest(name="P", size=32),
    )
    other = replace(asked, partition="Q", create=PartitionRequest(name="Q", size=64))
    served.acquire(asked)
    looks: list[int] = []
    look = Observer.life

    def count(*args: Any) -> Life:
        looks.append(1)
        return look(*args)

    monkeypatch.setattr(Observer, "life", count)
    with served.together():
        assert [refused(served, other) for _ in range(9)] == [True] * 9
    assert len(looks) == 1

    # A holder that has died before its request was performed does not go unseen.
    dead = replace(holder, process=replace(holder.process, start_time=1))
    with served.together():
        assert refused(served, other)
        served.release(served.list_leases()[0].id)
        create = PartitionRequest(name="R", size=32)
        theirs = replace(asked, holder=dead, partition="R", create=create)
        served.acquire(theirs)
        assert not refused(served, other)


def test_a_lease_gets_the_id_that_the_job_has_drawn(
    inventory: EmbeddedInventory, holder: Holder
) -> None:
    asked = Acquisition(
        holder=holder,
        partition="p",
        num_children=1,
        ipus_per_child=2,
        create=PartitionRequest(name="p", size=2),
        lease="0123456789abcdef" * 2,
    )

    grant = inventory.acquire(asked)
    assert grant.lease.id == asked.lease

    with pytest.raises(NameTakenError, match="Draw another id"):
        inventory.acquire(replace(asked, partition="q"))
    with pytest.raises(VipuRuleError, match="32 hexadecimal digits"):
        inventory.acquire(replace(asked, lease="x" * 32))


def test_a_lease_lives_with_the_guard_that_holds_the_parent_device(
    inventory: EmbeddedInventory, holder: Holder
) -> None:
    with other_process() as guard:
        dead = replace(holder.process, start_time=1)
        grant = inventory.acquire(
            Acquisition(
                holder=replace(holder, process=dead),
                partition="p",
                num_children=1,
                ipus_per_child=2,
                create=PartitionRequest(name="p", size=2),
            )
        )
        inventory.attach(grant.lease.id, PARENT, liveness.identify(guard.pid))

        assert inventory.end_dead_leases() == ()
    assert inventory.end_dead_leases() == (grant.lease,)
