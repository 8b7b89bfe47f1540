"""Whether a job can use a partition that exists, and what is done to it first."""

from dataclasses import replace

import pytest

from poprun.vipu.errors import MismatchError
from poprun.vipu.model import (
    Block,
    Cluster,
    GatewayRouting,
    LinkRouting,
    LinkTopology,
    Partition,
    PartitionChange,
    PartitionRequest,
    PartitionState,
    SyncType,
)
from poprun.vipu.rules.existing import (
    changed_request,
    describe_update,
    find_change,
)

POD = Cluster(name="c64", num_ilds=2)
P8 = Partition(
    name="P8",
    cluster="c64",
    allocation="c64",
    owner="alice",
    num_gcds=2,
    gcd_size=4,
    num_replicas=8,
    reconfigurable=False,
    link_routing=LinkRouting.DNC,
    gateway_routing=GatewayRouting.DEFAULT,
    sync_type=SyncType.POD_NATIVE_DEFAULT,
    link_topology=LinkTopology.MESH,
    blocks=(Block(first=0, size=8),),
    cluster_ild_size=64,
    state=PartitionState.ACTIVE,
)
P64 = replace(
    P8,
    name="p64",
    num_gcds=1,
    gcd_size=64,
    num_replicas=1,
    reconfigurable=True,
    sync_type=SyncType.C2_COMPATIBLE,
    blocks=(Block(first=0, size=64),),
)
JOB = PartitionRequest(name="P8", size=8, num_gcds=2, num_replicas=8)


def test_a_reconfigurable_partition_serves_jobs_of_any_shape_that_fits() -> None:
    for size, gcds, replicas in ((2, 2, 2), (64, 16, 16), (8, 3, 6)):
        job = replace(JOB, size=size, num_gcds=gcds, num_replicas=replicas)

        assert find_change(P64, job, update=False) is None


@pytest.mark.parametrize(
    ("partition", "changes", "parts", "change"),
    [
        (
            P8,
            {"size": 16, "num_gcds": 4, "num_replicas": 16},
            "8 IPUs where the job asks for 16 and 2 GCDs where the job asks for 4 and 8"
            " replicas where the job asks for 16",
            PartitionChange(size=16, num_gcds=4, gcd_size=4, num_replicas=16),
        ),
        (
            P8,
            {"num_replicas": 4},
            "8 replicas where the job asks for 4",
            PartitionChange(num_replicas=4),
        ),
        (
            P8,
            {"num_ilds": 2},
            "1 ILD where the job asks for 2",
            PartitionChange(num_ilds=2, num_replicas=8),
        ),
        (
            P8,
            {"link_routing": LinkRouting.SWNC},
            "IPU-Link routing dnc where the job asks for swnc",
            PartitionChange(link_routing=LinkRouting.SWNC, num_replicas=8),
        ),
        (
            P64,
            {"sync_type": SyncType.POD_NATIVE_DEFAULT},
            "sync type c2-compatible where the job asks for pod-native-default",
            PartitionChange(sync_type=SyncType.POD_NATIVE_DEFAULT),
        ),
        (
            P64,
            {"size": 128},
            "64 IPUs where the job asks for 128",
            PartitionChange(size=128),
        ),
    ],
)
def test_what_does_not_fit_is_named_or_changed(
    partition: Partition,
    changes: dict[str, object],
    parts: str,
    change: PartitionChange,
) -> None:
    job = replace(JOB, **changes)
    with pytest.raises(MismatchError) as refusal:
        find_change(partition, job, update=False)

    assert f") has {parts}. Let poprun change the partition with " in str(refusal.value)
    assert find_change(partition, job, update=True) == change


def test_replicas_that_were_left_open_are_no_mismatch() -> None:
    made = replace(P8, num_gcds=1, gcd_size=8, num_replicas=1)
    job = replace(JOB, num_gcds=1)

    assert find_change(made, job, update=False) is None


def test_a_mismatch_says_what_the_partition_is_and_what_helps() -> None:
    with pytest.raises(MismatchError) as refusal:
        find_change(P8, replace(JOB, num_replicas=4), update=False)

    assert str(refusal.value) == (
        "Partition P8 (ACTIVE, 8 IPUs, 2 GCDs, 8 replicas) has 8 replicas where the "
        "job asks for 4. Let poprun change the partition with --update-partition=yes, "
        "name another with --vipu-partition, or request the same values."
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"link_routing": LinkRouting.DEFAULT},
        {"link_routing": LinkRouting.DNC},
        {"gateway_routing": GatewayRouting.DEFAULT},
        {"sync_type": SyncType.POD_NATIVE_DEFAULT},
        {"num_ilds": 1},
    ],
)
def test_what_is_as_asked_is_no_mismatch(changes: dict[str, object]) -> None:
    assert find_change(P8, replace(JOB, **changes), update=False) is None


def test_what_a_change_leaves_open_stays() -> None:
    assert changed_request(
        P8, PartitionChange(num_replicas=4), POD
    ) == PartitionRequest(
        name="P8",
        size=8,
        num_gcds=2,
        num_replicas=4,
        num_ilds=1,
        reconfigurable=False,
        link_routing=LinkRouting.DNC,
        gateway_routing=GatewayRouting.DEFAULT,
        sync_type=SyncType.POD_NATIVE_DEFAULT,
        allocation="c64",
        owner="alice",
    )


@pytest.mark.parametrize(
    ("has", "change", "becomes"),
    [
        pytest.param(
            {"link_routing": LinkRouting.SWNC, "sync_type": SyncType.C2_COMPATIBLE},
            {"size": 16},
            {"link_routing": LinkRouting.SWNC, "sync_type": SyncType.C2_COMPATIBLE},
            id="routing-and-sync-stay",
        ),
        pytest.param(
            {
                "blocks": (Block(first=0, size=64),),
                "link_routing": LinkRouting.RINGSWNC,
            },
            {"size": 32},
            {"link_routing": None},
            id="no-ring-is-left",
        ),
        pytest.param(
            {"blocks": (Block(first=0, size=4), Block(first=64, size=4))},
            {"size": 16},
            {"num_ilds": 2},
            id="ilds-stay",
        ),
        pytest.param(
            {"blocks": (Block(first=0, size=4), Block(first=64, size=4))},
            {"num_gcds": 1},
            {"num_ilds": 1},
            id="a-gcd-is-within-an-ild",
        ),
        pytest.param({}, {"size": 128}, {"num_ilds": 2}, id="more-than-an-ild"),
        pytest.param(
            {}, {"size": 16}, {"num_replicas": 8, "gcd_size": None}, id="grow"
        ),
        pytest.param({}, {"size": 4}, {"num_replicas": 2}, id="too-small-for-replicas"),
        pytest.param({}, {"num_gcds": 4}, {"num_replicas": 8}, id="replicas-stay"),
        pytest.param(
            {"num_replicas": 2}, {"num_gcds": 4}, {"num_replicas": 4}, id="too-few"
        ),
        pytest.param(
            {"num_gcds": 3, "gcd_size": 2, "num_replicas": 6},
            {"size": 16},
            {"gcd_size": 2, "num_replicas": 6},
            id="gcds-that-do-not-fill-it",
        ),
        pytest.param(
            {"sync_type": SyncType.POD_NATIVE_DEFAULT},
            {"reconfigurable": True},
            {"sync_type": SyncType.C2_COMPATIBLE},
            id="reconfigurable",
        ),
        pytest.param({}, {"size": 0}, {"size": 0}, id="what-is-refused-later"),
    ],
)
def test_a_change_forces_only_what_cannot_stay(
    has: dict[str, object], change: dict[str, object], becomes: dict[str, object]
) -> None:
    found = changed_request(
        replace(P8, **has),  # type: ignore[arg-type]
        PartitionChange(**change),  # type: ignore[arg-type]
        POD,
    )

    assert {name: getattr(found, name) for name in becomes} == becomes


def test_an_update_is_described_from_what_to_what() -> None:
    after = replace(
        P8,
        blocks=(Block(first=0, size=16),),
        gcd_size=8,
        link_routing=LinkRouting.SWNC,
        generation=3,
    )

    assert describe_update(P8, after) == (
        "size 8 to 16, IPUs per GCD 4 to 8, IPU-Link routing dnc to swnc"
    )
    assert describe_update(P8, P8) == ""
