"""Which partition a job gets, step by step, in the inventory of this user."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from poprun.log import Log
from poprun.vipu.client.server_address import ServerAddress
from poprun.vipu.errors import (
    InUseError,
    MismatchError,
    NoSpaceError,
    NotActiveError,
    UnknownNameError,
    VipuRuleError,
)
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.launch import reserve as launch_reserve
from poprun.vipu.launch.reserve import (
    JobRequest,
    describe_devices,
    preview,
    reserve,
)
from poprun.vipu.launch.values import PartitionOptions
from poprun.vipu.leases import Acquisition, Grant, Holder
from poprun.vipu.model import AgentStatus, LinkRouting, PartitionRequest, SyncType

Reserve = Callable[..., Grant]


def job_request(
    options: PartitionOptions, replicas: int, holder: Holder, lease: str = ""
) -> JobRequest:
    """A job of two instances with one-IPU replicas."""
    acquisition = Acquisition(
        holder=holder,
        partition="own",
        num_children=2,
        ipus_per_child=replicas // 2,
        remove=options.remove,
        lease=lease,
    )
    return JobRequest(options=options, num_replicas=replicas, acquisition=acquisition)


@pytest.fixture
def lines() -> list[str]:
    """What is logged, without the time."""
    return []


@pytest.fixture
def ask(inventory: EmbeddedInventory, holder: Holder, lines: list[str]) -> Reserve:
    """Reserve IPUs for a job of two instances with one-IPU replicas."""

    def ask(
        replicas: int = 2,
        lease: str = "",
        show: Callable[[str], None] = lambda reason: None,
        **options: Any,
    ) -> Grant:
        job = job_request(PartitionOptions(**options), replicas, holder, lease)
        log = Log(2, lambda text: lines.append(text.split("] ", 1)[1].rstrip("\n")))
        return reserve(inventory, job, log, show)

    return ask


@pytest.fixture
def of_server(holder: Holder) -> Callable[..., JobRequest]:
    """A job that asks a server: what is there is not its own copy."""

    def job(replicas: int = 2, **options: Any) -> JobRequest:
        server = ServerAddress("h", 8090, origin="option")
        return job_request(PartitionOptions(server=server, **options), replicas, holder)

    return job


def test_a_preview_of_a_server_s_grant_changes_nothing(
    inventory: EmbeddedInventory, of_server: Callable[..., JobRequest]
) -> None:
    grant = preview(inventory, of_server())

    assert (grant.partition.name, grant.created) == ("own", True)
    assert inventory.list_partitions() == inventory.list_leases() == ()
    again = preview(inventory, of_server())
    assert again.partition.name == "own"


def test_a_preview_of_a_partition_in_use_is_refused_as_the_job_would_be(
    inventory: EmbeddedInventory, of_server: Callable[..., JobRequest], ask: Reserve
) -> None:
    inventory.create_partition(PartitionRequest(name="p2", size=2, reconfigurable=True))
    ask(name="p2")

    with pytest.raises(InUseError, match="p2"):
        preview(inventory, of_server(name="p2"))


def test_a_server_s_partition_is_not_updated_for_a_preview(
    inventory: EmbeddedInventory, of_server: Callable[..., JobRequest]
) -> None:
    inventory.create_partition(PartitionRequest(name="p2", size=2))

    with pytest.raises(VipuRuleError, match="would be updated first"):
        preview(inventory, of_server(replicas=4, name="p2", update=True))
    assert inventory.get_partition("p2").size == 2


def test_a_job_without_a_name_gets_a_partition_of_its_own(ask: Reserve) -> None:
    grant = ask()

    assert (grant.partition.name, grant.partition.size, grant.created) == (
        "own",
        2,
        True,
    )
    assert grant.partition.lease == grant.lease.id


def test_it_uses_the_only_one_there_is(
    ask: Reserve, inventory: EmbeddedInventory, lines: list[str]
) -> None:
    inventory.create_partition(PartitionRequest(name="P", size=2, num_gcds=2))
    grant = ask()

    assert (grant.partition.name, grant.created) == ("P", False)
    assert grant.partition.generation == 1  # it has been reset
    assert lines == [
        "Using V-IPU partition P as it is the only one available",
        "Status for partition P: OK (error 0)",
        "Partition P already exists and is in state: PS_ACTIVE",
        "Done polling, final state of P: PS_ACTIVE",
    ]


@pytest.mark.parametrize(
    ("reconfigurable", "reset", "resets"),
    [(False, None, 1), (True, None, 0), (False, False, 0), (True, True, 1)],
)
def test_only_what_is_not_reconfigurable_is_reset_unless_asked(
    ask: Reserve,
    inventory: EmbeddedInventory,
    reconfigurable: bool,
    reset: bool | None,
    resets: int,
) -> None:
    inventory.create_partition(
        PartitionRequest(
            name="P",
            size=2,
            num_gcds=1 if reconfigurable else 2,
            reconfigurable=reconfigurable,
        )
    )

    assert ask(name="P", reset=reset).partition.generation == resets


def test_it_gets_its_own_if_the_only_one_does_not_fit(
    ask: Reserve, inventory: EmbeddedInventory
) -> None:
    inventory.create_partition(PartitionRequest(name="P", size=4))
    assert ask().partition.name == "own"
    inventory.create_partition(PartitionRequest(name="Q", size=2, num_gcds=2))

    with pytest.raises(MismatchError):
        ask(name="P")
    assert ask(name="Q").partition.name == "Q"


def test_a_job_that_gets_neither_the_only_one_nor_its_own_is_told_of_both(
    ask: Reserve, inventory: EmbeddedInventory
) -> None:
    inventory.create_partition(PartitionRequest(name="P", size=4))

    with pytest.raises(MismatchError, match=r"^Partition P .* has 4 IPUs") as refusal:
        ask(replicas=64)
    [hint] = refusal.value.__notes__
    assert hint.startswith(
        "The job cannot get a new partition either: There is no room for partition "
        "own of 64 IPUs next to each other: "
    )


def test_an_update_keeps_the_routing_and_says_what_it_changes(
    ask: Reserve, inventory: EmbeddedInventory, lines: list[str]
) -> None:
    inventory.create_partition(
        PartitionRequest(
            name="P",
            size=2,
            num_gcds=2,
            link_routing=LinkRouting.SWNC,
            sync_type=SyncType.C2_COMPATIBLE,
        )
    )

    grant = ask(replicas=4, name="P", update=True)

    assert grant.partition.link_routing is LinkRouting.SWNC
    assert grant.partition.sync_type is SyncType.C2_COMPATIBLE
    assert (
        "Partition P was updated: size 2 to 4, IPUs per GCD 1 to 2, replicas 2 to 4"
        in lines
    )


def test_of_several_it_takes_that_of_its_batch_job(
    ask: Reserve, inventory: EmbeddedInventory, lines: list[str]
) -> None:
    for name in ("slurm_7", "slurm_8"):
        inventory.create_partition(PartitionRequest(name=name, size=2, num_gcds=2))

    grant = ask(batch_names=("slurm_8", "p8"))

    assert (grant.partition.name, grant.created) == ("slurm_8", False)
    assert lines[0] == "Using V-IPU partition slurm_8 as it belongs to the Slurm job"


def test_of_several_that_fit_it_takes_none(
    ask: Reserve, inventory: EmbeddedInventory
) -> None:
    for name in ("P", "Q"):
        inventory.create_partition(PartitionRequest(name=name, size=2, num_gcds=2))

    assert ask().partition.name == "own"


def test_one_that_was_made_for_another_job_is_not_the_only_one(
    ask: Reserve, inventory: EmbeddedInventory
) -> None:
    ask(name="other")

    assert ask().partition.name == "own"


def test_without_room_the_reason_is_that_of_the_partition_there_is(
    ask: Reserve, inventory: EmbeddedInventory
) -> None:
    inventory.create_partition(PartitionRequest(name="P", size=64))

    with pytest.raises(MismatchError, match="Partition P "):
        ask()


def test_a_named_one_in_use_is_not_replaced_by_another(ask: Reserve) -> None:
    ask(name="P")

    with pytest.raises(InUseError, match=r"Partition P .* user alice, job j1, host h1"):
        ask(name="P")


def test_a_partition_that_does_not_get_active_is_tried_so_often(
    ask: Reserve,
    inventory: EmbeddedInventory,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(launch_reserve.time, "sleep", waits.append)
    for agent in inventory.list_agents():
        inventory.set_agent_status(agent.name, AgentStatus.DOWN)

    with pytest.raises(NotActiveError) as refusal:
        ask(name="P", attempts=3)
    assert not hasattr(refusal.value, "__notes__")
    assert waits == [launch_reserve.ATTEMPT_S] * 2
    assert [line[:19] for line in lines if "failed" in line] == [
        "Attempt 1 of 3 fail",
        "Attempt 2 of 3 fail",
    ]
    assert inventory.list_partitions() == ()
    assert inventory.list_leases() == ()


def test_more_attempts_are_advised_to_one_who_asked_for_one(
    ask: Reserve, inventory: EmbeddedInventory
) -> None:
    for agent in inventory.list_agents():
        inventory.set_agent_status(agent.name, AgentStatus.DOWN)

    with pytest.raises(NotActiveError) as refusal:
        ask(name="P")
    assert refusal.value.__notes__ == ["--vipu-partition-attempts=3 tries three times."]


def test_a_refused_job_holds_nothing(
    ask: Reserve, inventory: EmbeddedInventory
) -> None:
    ask(replicas=64, name="P")
    with pytest.raises(NoSpaceError):
        ask()

    assert [lease.holder.job for lease in inventory.list_leases()] == ["j1"]
    assert [p.name for p in inventory.list_partitions()] == ["P"]


def test_a_partition_stays_if_it_is_to(
    ask: Reserve, inventory: EmbeddedInventory
) -> None:
    inventory.release(ask(remove=False).lease.id)

    assert [p.name for p in inventory.list_partitions()] == ["own"]


def test_a_job_gets_the_next_larger_partition_and_is_told(
    ask: Reserve, lines: list[str]
) -> None:
    grant = ask(replicas=6)

    assert grant.partition.size == 8
    assert [device.num_ipus for device in grant.children] == [3, 3]
    assert lines[0] == (
        "The job needs 6 IPUs, and its partition own has 8: the size of a partition "
        "is a power of two"
    )


def test_a_job_waits_for_a_partition_that_must_be_reset(
    ask: Reserve, inventory: EmbeddedInventory, lines: list[str]
) -> None:
    inventory.create_partition(PartitionRequest(name="P", size=2, num_gcds=2))
    first = ask(name="P")
    lines.clear()
    reasons: list[str] = []

    def show(reason: str) -> None:
        reasons.append(reason)
        inventory.release(first.lease.id)

    grant = ask(name="P", wait_s=60.0, lease="1" * 32, show=show)

    assert grant.partition.name == "P"
    assert [reason[:36] for reason in reasons] == [
        "P is held by user alice, job j1, hos"
    ]
    # Of the attempts only the last is logged.
    assert lines.count("Partition P already exists and is in state: PS_ACTIVE") == 1
    assert inventory.list_waiting() == ()


def test_a_job_that_has_waited_for_its_time_is_refused_and_waits_no_more(
    ask: Reserve, inventory: EmbeddedInventory
) -> None:
    ask(name="P", replicas=64)

    with pytest.raises(InUseError) as refusal:
        ask(wait_s=0.01, lease="1" * 32)
    assert str(refusal.value).startswith(
        "The job has waited for its IPUs for the 0.01 s of --wait-for-ipus. In use by "
        "partition P (64 IPUs, user alice, job j1, host h1, since "
    )
    assert inventory.list_waiting() == ()


def test_a_job_waits_for_room_if_the_only_partition_does_not_fit(
    ask: Reserve, inventory: EmbeddedInventory
) -> None:
    inventory.create_partition(PartitionRequest(name="kept", size=4, owner="bob"))
    first = ask(name="P", replicas=32, lease="2" * 32)
    second = ask(name="Q", replicas=16, lease="3" * 32)
    reasons: list[str] = []

    def show(reason: str) -> None:
        reasons.append(reason)
        inventory.release(first.lease.id)

    grant = ask(replicas=32, wait_s=60.0, lease="1" * 32, show=show)

    assert grant.created
    assert [reason[:40] for reason in reasons] == [
        "In use by partitions P (32 IPUs, user al"
    ]
    inventory.release(second.lease.id)


def test_what_waiting_does_not_help_is_refused_at_once(ask: Reserve) -> None:
    with pytest.raises(UnknownNameError):
        ask(wait_s=600.0, lease="1" * 32, cluster="nope")


def test_v_ipu_counts_more_than_the_device_and_the_environment_more_than_both(
    launch: Callable[..., Grant],
) -> None:
    request = PartitionRequest(name="P", size=32, reconfigurable=True)
    grant = launch("P", instances=2, replicas=4, create=request)
    options, lines = describe_devices(grant, {"instanceSize": "7", "own": "x"})

    texts = dict(text.split(": ") for _, text in lines if ": " in text)
    device = json.loads(texts["Target options from Poplar device"])
    assert device["ipuLinkDomainSize"] == "64"
    partition = json.loads(texts["Target options from V-IPU partition"])
    assert partition["ipuLinkDomainSize"] == "32"
    assert texts["Target options from environment"] == '{"instanceSize":"7","own":"x"}'
    assert json.loads(texts["Using target options"]) == options
    assert options == {
        "ipuLinkDomainSize": "32",
        "ipuLinkConfiguration": "default",
        "ipuLinkTopology": "mesh",
        "gatewayMode": "true",
        "instanceSize": "7",
        "own": "x",
    }


def test_all_devices_of_the_size_are_counted_and_those_before_are_in_use(
    launch: Callable[..., Grant],
) -> None:
    request = PartitionRequest(name="P", size=64, reconfigurable=True)
    launch("P", instances=1, replicas=2, create=request)
    grant = launch("P", instances=2, replicas=2, create=None)
    _, lines = describe_devices(grant, {})

    assert [text for _, text in lines[2:6]] == [
        "Found 32 devices with 2 IPUs",
        "Failed to attach to device 64",
        "Attached to device 65",
        "Found 2 children (expected 2) of device 65 with 1 IPUs each",
    ]
