"""What an inventory grants and refuses, one caller at a time."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from poprun.vipu.errors import (
    AccessError,
    DeviceError,
    InUseError,
    LeaseEndedError,
    MismatchError,
    NameTakenError,
    NoSpaceError,
    NotActiveError,
    UnknownNameError,
    VipuError,
    VipuRuleError,
)
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.leases import Acquisition, Grant, Holder
from poprun.vipu.model import (
    AgentStatus,
    Block,
    ClusterRequest,
    PartitionChange,
    PartitionState,
)
from poprun.vipu.model import PartitionRequest as Request
from poprun.vipu.rules import presets
from poprun.vipu.rules.numbering import Device

Launch = Callable[..., Grant]


def reconfigurable(name: str, size: int = 64) -> Request:
    return Request(name=name, size=size, reconfigurable=True, owner="alice")


def without_times(error: pytest.ExceptionInfo[VipuError]) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "NOW", str(error.value))


def test_a_job_gets_a_partition_a_parent_and_a_child_for_each_instance(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    grant = launch("P8", instances=4, replicas=8)

    assert grant.created
    assert grant.partition.state is PartitionState.ACTIVE
    assert (grant.partition.size, grant.partition.num_gcds) == (8, 4)
    assert grant.parent == Device(id=14, first=0, num_ipus=8)
    assert grant.children == (
        Device(id=8, first=0, num_ipus=2),
        Device(id=9, first=2, num_ipus=2),
        Device(id=10, first=4, num_ipus=2),
        Device(id=11, first=6, num_ipus=2),
    )
    assert inventory.list_partitions() == (grant.partition,)


def test_what_a_job_made_goes_with_its_lease(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    grant = launch("P8")
    inventory.release(grant.lease.id)
    inventory.release(grant.lease.id)  # the guard may do it as well

    assert inventory.list_partitions() == ()
    assert inventory.list_leases() == ()
    assert inventory.list_reservations() == ()


def test_a_partition_that_is_to_stay_stays(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    first = launch("P8", remove=False)
    inventory.release(first.lease.id)
    again = launch("P8")

    assert not again.created
    inventory.release(again.lease.id)
    assert [p.name for p in inventory.list_partitions()] == ["P8"]


def test_two_jobs_never_share_a_partition_that_is_not_reconfigurable(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    launch("P8", replicas=8)
    with pytest.raises(InUseError) as refusal:
        launch("P8", replicas=8)

    assert without_times(refusal) == (
        "Partition P8 (ACTIVE, 8 IPUs, 1 GCD, 8 replicas) cannot be used by another "
        "job, because it is in use by user alice, job j1, host h1, since NOW. Wait "
        "until it is free, or use another partition."
    )


def test_jobs_share_a_reconfigurable_partition_until_its_ipus_are_taken(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    inventory.create_partition(reconfigurable("p64"))
    grants = [
        launch("p64", instances=2, replicas=2, create=None),
        launch("p64", replicas=16, create=None),
        launch("p64", replicas=32, create=None),
    ]

    assert [grant.parent.id for grant in grants] == [64, 121, 125]
    assert grants[0].children == (
        Device(id=0, first=0, num_ipus=1),
        Device(id=1, first=1, num_ipus=1),
    )
    with pytest.raises(InUseError) as refusal:
        launch("p64", replicas=16, create=None)
    assert without_times(refusal).startswith(
        "Partition p64 (ACTIVE, reconfigurable, 64 IPUs, 1 GCD, 1 replica) is in use: "
        "50 of its 64 IPUs are held by user alice, job j1, host h1, since NOW; "
    )


def test_a_job_that_is_larger_than_a_partition_is_refused(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    inventory.create_partition(reconfigurable("p4", 4))
    with pytest.raises(MismatchError) as refusal:
        launch("p4", replicas=8, create=None)

    assert str(refusal.value) == (
        "Partition p4 (ACTIVE, reconfigurable, 4 IPUs, 1 GCD, 1 replica) cannot "
        "serve a "
        "job of 8 IPUs. Let poprun change it with --update-partition=yes, or name "
        "another with --vipu-partition."
    )


def test_no_room_says_what_is_free_and_who_has_the_rest(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    launch("P32", replicas=32)
    inventory.create_partition(Request(name="kept", size=4, owner="bob"))
    with pytest.raises(NoSpaceError) as refusal:
        launch("Q", replicas=32)

    assert without_times(refusal) == (
        "There is no room for partition Q of 32 IPUs next to each other: cluster c64 "
        "has 28 of 64 IPUs free, at most 16 of them next to each other. In use by "
        "partitions P32 (32 IPUs, user alice, job j1, host h1, since NOW), kept (4 "
        "IPUs, kept by user bob since NOW). Wait until some are free, ask for fewer, "
        "or name another cluster or allocation."
    )


def test_a_full_cluster_is_in_use_by_whom(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    launch("P", replicas=64)
    with pytest.raises(NoSpaceError) as refusal:
        launch("Q", replicas=1)

    assert without_times(refusal) == (
        "There is no room for partition Q of 1 IPU: all 64 IPUs of cluster c64 are in "
        "use. In use by partition P (64 IPUs, user alice, job j1, host h1, since "
        "NOW). Wait until some are free, ask for fewer, or name another cluster or "
        "allocation."
    )


def test_agents_that_are_all_in_other_allocations_are_no_full_cluster(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    agents = [agent.name for agent in inventory.list_agents("c64")]
    inventory.create_user("bob")
    inventory.create_allocation("A", "c64", agents[:8])
    inventory.create_allocation("B", "c64", agents[8:], users=["bob"])
    with pytest.raises(NoSpaceError) as refusal:
        launch("Q", replicas=1)

    assert str(refusal.value) == (
        "There is no room for partition Q of 1 IPU: all agents of cluster c64 are in "
        "other allocations: A, B. Wait until some are free, ask for fewer, or name "
        "another cluster or allocation."
    )


def test_a_partition_that_exists_otherwise_is_no_jobs(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    inventory.create_partition(Request(name="P", size=8, owner="bob"))
    with pytest.raises(MismatchError):
        launch("P", replicas=4)
    with pytest.raises(
        NameTakenError, match=r"of user bob already exists\. Choose another name"
    ):
        inventory.create_partition(Request(name="P", size=4))


def test_a_name_that_is_no_text_is_refused(inventory: EmbeddedInventory) -> None:
    with pytest.raises(VipuRuleError) as refusal:
        inventory.get_partition("P\udcff")

    assert str(refusal.value) == (
        "'P\\xff' is not valid UTF-8, so nothing in an inventory has this name. 'vipu "
        "list' shows the names."
    )


def test_unknown_names_get_those_there_are(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    with pytest.raises(UnknownNameError) as refusal:
        inventory.get_partition("P")
    assert str(refusal.value) == "There is no partition 'P'. There are no partitions."

    inventory.create_partition(Request(name="Q", size=4, owner="bob"))
    with pytest.raises(UnknownNameError) as refusal:
        launch("P", create=None)
    assert str(refusal.value) == "There is no partition 'P'. Existing partitions: Q."

    with pytest.raises(UnknownNameError) as refusal:
        inventory.create_partition(Request(name="P", size=4, allocation="A8"))
    assert (
        str(refusal.value) == "There is no allocation 'A8'. Existing allocations: c64."
    )

    with pytest.raises(UnknownNameError) as refusal:
        inventory.create_partition(Request(name="P", size=4, cluster="A8"))
    assert str(refusal.value) == "There is no cluster 'A8'. Existing clusters: c64."


def test_a_user_sees_only_the_partitions_of_that_user(
    inventory: EmbeddedInventory,
) -> None:
    inventory.create_partition(Request(name="P", size=4, owner="alice"))
    inventory.create_partition(Request(name="Q", size=4, owner="bob"))

    assert [p.name for p in inventory.list_partitions("alice")] == ["P"]
    with pytest.raises(UnknownNameError) as refusal:
        inventory.remove_partition("Q", "alice")
    assert str(refusal.value) == "There is no partition 'Q'. Existing partitions: P."


def test_a_partition_in_use_is_neither_removed_nor_reset_nor_updated(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    grant = launch("P8", replicas=8)
    for change in (
        lambda: inventory.remove_partition("P8"),
        lambda: inventory.reset_partition("P8"),
        lambda: inventory.update_partition("P8", PartitionChange(num_replicas=4)),
    ):
        with pytest.raises(InUseError):
            change()

    inventory.remove_partition("P8", force=True)
    assert inventory.list_partitions() == ()
    with pytest.raises(LeaseEndedError):
        inventory.renew(grant.lease.id)


def test_an_update_moves_a_partition_only_if_it_must(
    inventory: EmbeddedInventory,
) -> None:
    inventory.create_partition(Request(name="P", size=8))
    inventory.create_partition(Request(name="Q", size=8))
    same = inventory.update_partition("P", PartitionChange(num_gcds=4))
    larger = inventory.update_partition("P", PartitionChange(size=32))

    assert (same.blocks, same.num_gcds, same.gcd_size) == (
        (Block(first=0, size=8),),
        4,
        2,
    )
    assert (larger.blocks, larger.gcd_size) == ((Block(first=32, size=32),), 8)
    with pytest.raises(VipuRuleError):
        inventory.update_partition("P", PartitionChange(size=128))
    inventory.create_partition(Request(name="R", size=16))
    with pytest.raises(NoSpaceError):
        inventory.update_partition("P", PartitionChange(size=64))
    assert inventory.get_partition("P") == larger


def test_ilds_of_a_partition_are_next_to_each_other(empty: EmbeddedInventory) -> None:
    empty.create_cluster(presets.preset("pod256", "c256"))
    split = empty.create_partition(Request(name="P", size=8, num_ilds=2, num_gcds=2))
    whole = empty.create_partition(Request(name="Q", size=128, num_gcds=2))

    assert split.blocks == (Block(first=0, size=4), Block(first=64, size=4))
    assert whole.blocks == (Block(first=128, size=64), Block(first=192, size=64))
    empty.remove_partition("P")
    empty.remove_partition("Q")
    assert empty.create_partition(
        Request(name="R", size=256, num_gcds=4)
    ).blocks == tuple(Block(first=64 * n, size=64) for n in range(4))


AG1 = "agent ag1 (10.1.0.1:8080)"
REMEDY = "until an administrator runs: vipu-admin update agent ag1 --status up"


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        (AgentStatus.DOWN, PartitionState.ERROR, f"{AG1} is down {REMEDY}"),
        (
            AgentStatus.UNKNOWN,
            PartitionState.PENDING,
            f"{AG1} does not answer {REMEDY}",
        ),
    ],
)
def test_a_partition_on_a_failed_agent_does_not_become_active(
    inventory: EmbeddedInventory,
    launch: Launch,
    status: AgentStatus,
    state: PartitionState,
    reason: str,
) -> None:
    inventory.set_agent_status("ag1", status)
    with pytest.raises(NotActiveError) as refusal:
        launch("P", replicas=8)
    assert str(refusal.value) == (
        f"Partition P ({state.name}, 8 IPUs, 1 GCD, 8 replicas) is in state "
        f"PS_{state.name}, not PS_ACTIVE: {reason}. Name one that is ACTIVE with "
        "--vipu-partition."
    )
    assert inventory.list_partitions() == ()

    assert launch("Q", replicas=4).partition.state is PartitionState.ACTIVE
    assert inventory.create_partition(Request(name="R", size=4)).reason == reason
    with pytest.raises(NotActiveError) as refusal:
        launch("R", replicas=4)
    assert str(refusal.value).endswith(
        f"{reason}. Reset it with --reset-partition=yes, or name another with "
        "--vipu-partition."
    )
    inventory.set_agent_status("ag1", AgentStatus.UP)
    inventory.reset_partition("R")
    assert inventory.get_partition("R").state is PartitionState.ACTIVE


def test_a_pending_partition_becomes_active_when_its_agent_answers(
    inventory: EmbeddedInventory,
) -> None:
    inventory.set_agent_status("ag0", AgentStatus.UNKNOWN)
    inventory.create_partition(Request(name="P", size=4))
    inventory.set_agent_status("ag0", AgentStatus.UP)

    assert inventory.get_partition("P").state is PartitionState.ACTIVE


def test_an_instance_attaches_to_its_own_device(
    inventory: EmbeddedInventory, launch: Launch, holder: Holder
) -> None:
    grant = launch("P", instances=2, replicas=4)
    lease = grant.lease.id

    assert inventory.attach(lease, 1, holder.process) == grant.children[1]
    assert inventory.attach(lease, 1, holder.process) == grant.children[1]
    assert [r.process for r in inventory.list_reservations("P")] == [
        None,
        None,
        holder.process,
    ]
    inventory.detach(lease, 1, holder.process)
    assert inventory.list_reservations("P")[2].process is None
    with pytest.raises(DeviceError) as refusal:
        inventory.attach(lease, 2, holder.process)
    assert str(refusal.value) == (
        "Partition P has no device for instance 2: the job holds 2 devices of it, for "
        "instances from 0 on. Start the job with as many instances as it has."
    )
    inventory.release(lease)
    with pytest.raises(LeaseEndedError):
        inventory.attach(lease, 1, holder.process)


def test_clusters_are_made_of_agents(empty: EmbeddedInventory) -> None:
    for number in range(6):
        empty.create_agent(f"ag{number}", f"10.1.2.{number}")
    names = tuple(f"ag{number}" for number in range(6))
    cluster = empty.create_cluster(ClusterRequest(name="c", agents=names))

    assert (cluster.size, cluster.ild_size) == (24, 24)
    assert empty.get_agent("ag5").positions == range(20, 24)
    with pytest.raises(InUseError, match="Agent ag0 belongs to cluster c"):
        empty.create_cluster(ClusterRequest(name="d", agents=("ag0",)))
    with pytest.raises(NameTakenError):
        empty.create_agent("ag0", "10.1.2.9")
    empty.create_partition(Request(name="P", size=16))
    with pytest.raises(InUseError):
        empty.remove_cluster("c")
    empty.remove_partition("P")
    empty.remove_cluster("c")
    empty.remove_agent("ag0")
    assert [agent.name for agent in empty.list_agents()] == list(names[1:])


def test_allocations_set_agents_apart(inventory: EmbeddedInventory) -> None:
    inventory.create_user("bob")
    made = inventory.create_allocation("a", "c64", ["ag2", "ag3"], ["bob"])

    assert (made.agents, made.users) == (("ag2", "ag3"), ("bob",))
    assert len(inventory.get_allocation("c64").agents) == 14
    with pytest.raises(AccessError, match="User alice may not use allocation a"):
        inventory.create_partition(
            Request(name="P", size=4, allocation="a", owner="alice")
        )
    mine = Request(name="P", size=8, allocation="a", owner="bob")
    assert inventory.create_partition(mine).blocks == (Block(first=8, size=8),)
    with pytest.raises(NoSpaceError, match="all 8 IPUs of allocation a are in use"):
        inventory.create_partition(replace(mine, name="Q"))
    with pytest.raises(InUseError):
        inventory.remove_allocation("a")
    inventory.remove_partition("P")
    inventory.remove_allocation("a")
    assert inventory.create_partition(Request(name="P", size=64)).size == 64


def test_agents_in_use_are_not_set_apart(inventory: EmbeddedInventory) -> None:
    inventory.create_partition(Request(name="P", size=8))
    with pytest.raises(InUseError, match="Agent ag1 has IPUs in use by a partition"):
        inventory.create_allocation("a", "c64", ["ag2", "ag1"])

    assert [a.name for a in inventory.list_allocations()] == ["c64"]


def test_access_keys_are_checked_and_not_kept(
    inventory: EmbeddedInventory,
) -> None:
    key = inventory.create_user("bob", is_admin=True)

    assert inventory.check_access("bob", key).is_admin
    for name, wrong in (("bob", key + "x"), ("bob", ""), ("eve", key)):
        with pytest.raises(AccessError):
            inventory.check_access(name, wrong)
    with open(inventory.location + "-wal", "rb") as file:
        assert key.encode() not in file.read()


def test_a_job_finds_a_pod_that_is_large_enough(empty: EmbeddedInventory) -> None:
    assert empty.ensure_cluster(8) is not None
    assert empty.ensure_cluster(64) is None
    larger = empty.ensure_cluster(200)

    assert larger is not None
    assert [(c.name, c.size) for c in empty.list_clusters()] == [
        ("pod64", 64),
        ("pod256", 256),
    ]
    # Small jobs leave the large pod alone.
    assert empty.create_partition(Request(name="P", size=64)).cluster == "pod64"


def test_no_pod_is_made_beside_clusters_of_the_user(
    inventory: EmbeddedInventory, holder: Holder
) -> None:
    assert inventory.ensure_cluster(128) is None
    asked = Acquisition(
        holder=holder,
        partition="P",
        num_children=2,
        ipus_per_child=64,
        create=Request(name="P", size=128, num_gcds=2),
    )
    with pytest.raises(VipuRuleError, match=r"128 IPUs, but cluster c64 has 64\."):
        inventory.acquire(asked)
    assert inventory.list_leases() == ()


def test_a_partition_can_be_given_its_place(empty: EmbeddedInventory) -> None:
    empty.create_cluster(presets.preset("pod128", "c128"))

    third = empty.create_partition(Request(name="P", size=16, place_index=2))
    other_rack = empty.create_partition(Request(name="Q", size=16, place_index=7))
    across = empty.create_partition(
        Request(name="R", size=32, num_ilds=2, num_gcds=2, place_index=1)
    )

    assert [p.blocks for p in (third, other_rack, across)] == [
        (Block(first=32, size=16),),
        (Block(first=112, size=16),),
        (Block(first=16, size=16), Block(first=80, size=16)),
    ]


def test_a_place_that_is_taken_is_refused(empty: EmbeddedInventory) -> None:
    empty.create_cluster(presets.preset("pod16", "c16"))
    empty.create_partition(Request(name="P", size=4, place_index=1))

    with pytest.raises(NoSpaceError, match="of 8 IPUs next to each other at index 0: "):
        empty.create_partition(Request(name="Q", size=8, place_index=0))


def test_of_a_place_that_is_taken_in_part_nothing_else_stays_taken(
    empty: EmbeddedInventory,
) -> None:
    empty.create_cluster(presets.preset("pod128", "a"))
    empty.create_cluster(presets.preset("pod128", "b"))
    # The second ILD of index 0 of cluster a.
    empty.create_partition(Request(name="P", size=16, place_index=4, cluster="a"))

    across = empty.create_partition(
        Request(name="Q", size=32, num_ilds=2, num_gcds=2, place_index=0)
    )
    first_ild = empty.create_partition(
        Request(name="R", size=16, place_index=0, cluster="a")
    )

    assert across.cluster == "b"
    assert first_ild.blocks == (Block(first=0, size=16),)


@pytest.mark.parametrize("index", [-1, 4])
def test_a_cluster_has_only_so_many_places(
    inventory: EmbeddedInventory, index: int
) -> None:
    with pytest.raises(VipuRuleError, match=r"has 4 places for it\. Give an index"):
        inventory.create_partition(Request(name="P", size=16, place_index=index))


def test_what_is_too_large_for_all_is_compared_with_the_largest(
    inventory: EmbeddedInventory,
) -> None:
    inventory.create_cluster(presets.preset("pod16", "a16"))
    inventory.create_cluster(presets.preset("pod128", "c128"))

    with pytest.raises(VipuRuleError) as refusal:
        inventory.create_partition(Request(name="P", size=256, num_gcds=4))
    assert str(refusal.value) == (
        "Partition P would have 256 IPUs, but cluster c128 has 128. Ask for fewer, or "
        "name a larger cluster."
    )
