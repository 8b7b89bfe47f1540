"""Jobs that wait for IPUs: first come, first served."""

import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest

from poprun.vipu import liveness
from poprun.vipu.errors import (
    InUseError,
    NameTakenError,
    NoSpaceError,
    UnknownNameError,
    VipuRuleError,
)
from poprun.vipu.inventory import acquisition
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.leases import Acquisition, Grant, Holder
from poprun.vipu.model import PartitionRequest
from poprun.vipu.rules import presets
from poprun.vipu.rules.partition_rules import request_for_job

Launch = Callable[..., Grant]
Ask = Callable[..., Acquisition]


@pytest.fixture
def ask(holder: Holder) -> Ask:
    """Return what a job asks for; its number is its name and the id of its lease."""

    def ask(
        number: int, num_ipus: int, name: str = "", **changes: object
    ) -> Acquisition:
        name = name or f"p{number}"
        request = request_for_job(
            name,
            num_replicas=num_ipus,
            ipus_per_replica=1,
            num_instances=1,
            strict=False,
        )
        return replace(
            Acquisition(
                holder=replace(holder, job=f"j{number}"),
                partition=name,
                num_children=1,
                ipus_per_child=num_ipus,
                create=request,
                lease=f"{number:032x}",
            ),
            **changes,
        )

    return ask


def waiting(inventory: EmbeddedInventory) -> list[str]:
    return [job.holder.job for job in inventory.list_waiting()]


def test_a_large_job_is_not_starved_by_small_ones(
    inventory: EmbeddedInventory, launch: Launch, ask: Ask
) -> None:
    first = launch("first", replicas=32)
    large, small = ask(1, 64), ask(2, 2)
    turn = inventory.wait_in_queue(large)
    assert turn.is_next
    assert turn.reason.startswith(
        "In use by partition first (32 IPUs, user alice, job j1, host h1, since "
    )
    with pytest.raises(NoSpaceError):
        inventory.acquire(large)

    turn = inventory.wait_in_queue(small)
    assert not turn.is_next
    assert turn.reason.startswith(
        "A job waiting for 64 IPUs is ahead of it (user alice, job j1, host h1). In "
        "use by partition first "
    )
    with pytest.raises(InUseError) as refusal:
        inventory.acquire(ask(3, 2))  # which does not wait
    assert str(refusal.value) == (
        "2 waiting jobs are ahead of it; the first of them waits for 64 IPUs (user "
        "alice, job j1, host h1). Wait behind them with --wait-for-ipus."
    )

    inventory.release(first.lease.id)
    with pytest.raises(InUseError):
        inventory.acquire(small)
    assert inventory.acquire(large).partition.size == 64
    assert waiting(inventory) == ["j2"]
    assert inventory.wait_in_queue(small).is_next


def test_a_job_that_dies_leaves_the_queue_at_once(
    inventory: EmbeddedInventory, launch: Launch, ask: Ask, holder: Holder
) -> None:
    launch("first", replicas=64)
    with subprocess.Popen(["sleep", "600"]) as process:
        dying = replace(holder, process=liveness.identify(process.pid), job="dying")
        inventory.wait_in_queue(ask(1, 64, holder=dying))
        assert not inventory.wait_in_queue(ask(2, 2)).is_next
        process.kill()

    assert inventory.wait_in_queue(ask(2, 2)).is_next
    assert waiting(inventory) == ["j2"]


def test_a_job_that_does_not_ask_again_holds_none_up_and_keeps_its_place(
    inventory: EmbeddedInventory,
    launch: Launch,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch("first", replicas=64)
    inventory.wait_in_queue(ask(1, 64))
    with monkeypatch.context() as patch:
        patch.setattr(acquisition, "SILENT_S", -1.0)
        assert inventory.wait_in_queue(ask(2, 2)).is_next

    assert inventory.wait_in_queue(ask(1, 64)).is_next
    assert not inventory.wait_in_queue(ask(2, 2)).is_next


def test_a_job_of_another_machine_that_never_asks_again_leaves_the_queue(
    inventory: EmbeddedInventory,
    launch: Launch,
    ask: Ask,
    holder: Holder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch("first", replicas=64)
    elsewhere = replace(
        holder,
        process=replace(holder.process, boot_id="another-boot"),
        host="h2",
        job="j1",
    )
    inventory.wait_in_queue(ask(1, 64, holder=elsewhere))
    assert waiting(inventory) == ["j1"]

    monkeypatch.setattr(acquisition, "FORGOTTEN_S", -1.0)
    assert waiting(inventory) == []


def test_releasing_the_lease_of_a_job_that_waits_ends_its_waiting(
    inventory: EmbeddedInventory, launch: Launch, ask: Ask
) -> None:
    launch("first", replicas=64)
    inventory.wait_in_queue(ask(1, 64))
    inventory.release(ask(1, 64).lease)

    assert waiting(inventory) == []
    assert inventory.wait_in_queue(ask(2, 2)).is_next


def test_jobs_compete_only_for_the_same_ipus(
    inventory: EmbeddedInventory, launch: Launch, ask: Ask
) -> None:
    inventory.create_cluster(presets.preset("pod16", "c16"))
    inventory.create_partition(PartitionRequest(name="P", size=8, cluster="c64"))
    launch("first", replicas=32)
    in_c64 = ask(1, 64)
    assert in_c64.create is not None
    inventory.wait_in_queue(
        replace(in_c64, create=replace(in_c64.create, cluster="c64"))
    )

    in_c16 = ask(2, 4)
    assert in_c16.create is not None
    other = replace(in_c16, create=replace(in_c16.create, cluster="c16"))
    assert inventory.acquire(other).partition.cluster == "c16"
    assert inventory.acquire(ask(3, 8, "P", create=None)).partition.name == "P"
    turn = inventory.wait_in_queue(ask(4, 8, "P"))
    assert turn.is_next
    assert turn.reason.startswith("P is held by user alice, job j3, host h1, since ")
    assert not inventory.wait_in_queue(ask(5, 8, "P")).is_next


def test_a_user_cannot_wait_for_the_partition_of_another_user(
    inventory: EmbeddedInventory, ask: Ask
) -> None:
    inventory.create_partition(PartitionRequest(name="p", size=4, owner="alice"))
    with pytest.raises(NameTakenError, match="There is a partition p of another user"):
        inventory.wait_in_queue(ask(1, 4, "p"), "mallory")
    with pytest.raises(UnknownNameError, match="There is no partition 'p'"):
        inventory.wait_in_queue(ask(1, 4, "p", create=None), "mallory")

    assert waiting(inventory) == []


def test_what_no_allocation_has_is_not_waited_for(
    inventory: EmbeddedInventory, ask: Ask
) -> None:
    inventory.create_allocation("a", "c64", ["ag0", "ag1"])
    asked = ask(1, 16)
    assert asked.create is not None
    asked = replace(asked, create=replace(asked.create, allocation="a"))

    with pytest.raises(VipuRuleError) as refusal:
        inventory.wait_in_queue(asked)
    assert str(refusal.value) == (
        "The job can never get 16 IPUs: the largest allocation that it can use has 8. "
        "Ask for fewer, or name another cluster or allocation."
    )
    assert waiting(inventory) == []
