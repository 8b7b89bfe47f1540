"""IPUs belong to processes that live, and to no others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from poprun.vipu import liveness
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.inventory.tables import lease_store
from poprun.vipu.leases import PARENT, Grant, Holder, Life, ProcessIdentity
from poprun.vipu.requests import Acquisition, PartitionRequest
from poprun.vipu.vipu_errors import (
    DeviceError,
    InUseError,
    LeaseEndedError,
    NameTakenError,
    VipuRuleError,
)

Launch = Callable[..., Grant]
LONG_AGO = 10**9


@contextmanager
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def elsewhere(process: ProcessIdentity) -> ProcessIdentity:
    return process._replace(boot_id="another-boot")


def test_a_process_lives_until_it_ends() -> None:
    with other_process() as child:
        identity = liveness.identify(child.pid)
        assert liveness.life(identity, "h1", "h1") is Life.ALIVE
        os.kill(child.pid, signal.SIGSTOP)
        assert liveness.life(identity, "h1", "h1") is Life.ALIVE
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        # A zombie holds nothing.
        assert liveness.life(identity, "h1", "h1") is Life.DEAD
    assert liveness.life(identity, "h1", "h1") is Life.DEAD
    with pytest.raises(ProcessLookupError):
        liveness.identify(child.pid)


def test_another_process_of_the_same_number_is_not_taken_for_it() -> None:
    earlier = liveness.identify()._replace(start_time=1)

    assert liveness.life(earlier, "h1", "h1") is Life.DEAD


def test_what_cannot_be_seen_is_not_guessed() -> None:
    me = liveness.identify()

    assert liveness.life(elsewhere(me), "h1", "h1") is Life.DEAD
    assert liveness.life(elsewhere(me), "h2", "h1") is Life.UNKNOWN
    contained = me._replace(pid_namespace="pid:[1]")
    assert liveness.life(contained, "h1", "h1") is Life.UNKNOWN


def test_a_killed_job_gives_its_ipus_back(
    inventory: EmbeddedInventory, holder: Holder, launch: Launch
) -> None:
    with other_process() as child:
        theirs = holder._replace(job="j2", process=liveness.identify(child.pid))
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
        theirs = holder._replace(process=liveness.identify(child.pid))
        grant = launch("P", holder=theirs)
        assert inventory.end_dead_leases() == ()

    assert inventory.list_partitions() == ()
    assert inventory.list_reservations() == ()
    assert inventory.list_leases() == ()
    assert grant.created


def test_ipus_stay_held_while_an_instance_outlives_its_poprun(
    inventory: EmbeddedInventory, holder: Holder, launch: Launch
) -> None:
    with other_process() as instance:
        with other_process() as poprun:
            theirs = holder._replace(process=liveness.identify(poprun.pid))
            grant = launch("P", holder=theirs)
            inventory.attach(grant.lease.id, 0, liveness.identify(instance.pid))
        with pytest.raises(InUseError):
            launch("P")
    assert launch("P").created


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
            f"Device 0 of instance 0 cannot be attached to by process {os.getpid()}, "
            f"because process {child.pid} of the same job is attached to it. Let one "
            "process of each instance attach, and the others work through it."
        )

    assert inventory.attach(lease, 0, holder.process) == device


def test_the_time_of_a_lease_counts_only_for_holders_out_of_sight(
    inventory: EmbeddedInventory,
    holder: Holder,
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = holder._replace(host="h2", process=elsewhere(holder.process))
    here = launch("P")
    there = launch("Q", holder=remote, lease_s=60)
    now = lease_store._now()
    monkeypatch.setattr(lease_store, "_now", lambda: now + 59)
    assert inventory.end_dead_leases() == ()
    inventory.renew(there.lease.id)
    monkeypatch.setattr(lease_store, "_now", lambda: now + 118)
    assert inventory.end_dead_leases() == ()
    monkeypatch.setattr(lease_store, "_now", lambda: now + 120)

    assert [lease.id for lease in inventory.end_dead_leases()] == [there.lease.id]
    assert [lease.id for lease in inventory.list_leases()] == [here.lease.id]


def test_leases_of_other_hosts_outlive_a_reboot_of_this_one(
    path: Path, holder: Holder, inventory: EmbeddedInventory, launch: Launch
) -> None:
    remote = holder._replace(host="h2", process=elsewhere(holder.process))
    local = holder._replace(process=elsewhere(holder.process))
    there = launch("P", holder=remote)
    launch("Q", holder=local)
    with inventory._write() as db:
        db.execute("UPDATE boot SET id = 'another-boot'")
        db.execute("UPDATE leases SET ends = 0")
    again = EmbeddedInventory(path, host="h1")

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
    inventory: EmbeddedInventory, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = launch("P", lease_s=1)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(lease_store, "_now", lambda: now + LONG_AGO)

    assert inventory.get_partition("P").lease == grant.lease.id


def test_room_that_another_process_made_is_seen(
    inventory: EmbeddedInventory,
    holder: Holder,
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = holder._replace(process=holder.process._replace(start_time=1))
    launch("P", replicas=64, holder=gone)
    end_dead_leases = inventory.end_dead_leases

    def end_and_find_none() -> tuple[()]:
        end_dead_leases()  # as another process might in the meantime
        return ()

    monkeypatch.setattr(inventory, "end_dead_leases", end_and_find_none)

    assert launch("Q", replicas=64).created


def test_a_lease_gets_the_id_that_the_job_has_drawn(
    inventory: EmbeddedInventory, holder: Holder
) -> None:
    asked = Acquisition(
        holder=holder,
        partition="p",
        num_children=1,
        ipus_per_child=2,
        create=PartitionRequest("p", 2),
        lease="0123456789abcdef" * 2,
    )

    grant = inventory.acquire(asked)
    assert grant.lease.id == asked.lease

    with pytest.raises(NameTakenError, match="Draw another id"):
        inventory.acquire(asked._replace(partition="q"))
    with pytest.raises(VipuRuleError, match="32 hexadecimal digits"):
        inventory.acquire(asked._replace(lease="x" * 32))


def test_a_lease_lives_with_the_guard_that_holds_the_parent_device(
    inventory: EmbeddedInventory, holder: Holder
) -> None:
    with other_process() as guard:
        dead = holder.process._replace(start_time=1)
        grant = inventory.acquire(
            Acquisition(
                holder=holder._replace(process=dead),
                partition="p",
                num_children=1,
                ipus_per_child=2,
                create=PartitionRequest("p", 2),
            )
        )
        inventory.attach(grant.lease.id, PARENT, liveness.identify(guard.pid))

        assert inventory.end_dead_leases() == ()
    assert inventory.end_dead_leases() == (grant.lease,)
