from dataclasses import replace

import pytest

from poprun.vipu.errors import VipuRuleError
from poprun.vipu.model import Block, Cluster, LinkRouting, PartitionRequest, SyncType
from poprun.vipu.rules import partition_rules, presets
from poprun.vipu.rules.checks import check_cluster

POD64 = Cluster(name="c64")
POD128 = Cluster(name="c128", num_ilds=2)


def request(**changes: object) -> PartitionRequest:
    return replace(PartitionRequest(name="P", size=8), **changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"size": 6},
            "Partition P would have 6 IPUs, but a partition has a power of two, up to "
            "65536. Ask for 4 or 8.",
        ),
        (
            {"size": 0},
            "Partition P would have 0 IPUs, but a partition has a power of two, up to "
            "65536. Ask for 1.",
        ),
        (
            {"size": 131072},
            "Partition P would have 131072 IPUs, but a partition has a power of two, "
            "up to 65536. Ask for 65536.",
        ),
        (
            {"num_gcds": 16},
            "Partition P of 8 IPUs cannot have 16 GCDs. Ask for 1 to 8 GCDs.",
        ),
        (
            {"num_gcds": 3, "gcd_size": 4},
            "Partition P of 8 IPUs cannot have 3 GCDs of 4 IPUs. Ask for 1 to 2 GCDs.",
        ),
        (
            {"num_gcds": 3},
            "Partition P of 8 IPUs cannot be divided equally into 3 GCDs. Ask for a "
            "power of two of them.",
        ),
        (
            {"size": 4, "num_gcds": 2, "num_replicas": 3},
            "Partition P of 4 IPUs cannot have 3 replicas in 2 GCDs: each GCD has the "
            "same number of them, and each of them 1 IPU or more. Ask for a multiple "
            "of 2, up to 4.",
        ),
        (
            {"size": 4, "num_replicas": 4096},
            "Partition P of 4 IPUs cannot have 4096 replicas in 1 GCD: each GCD has "
            "the same number of them, and each of them 1 IPU or more. Ask for 1 to 4.",
        ),
        (
            {"size": 1, "num_replicas": 5},
            "Partition P of 1 IPU cannot have 5 replicas in 1 GCD: each GCD has the "
            "same number of them, and each of them 1 IPU or more. Ask for 1.",
        ),
        (
            {"num_gcds": 3, "gcd_size": 2, "num_replicas": 9},
            "Partition P of 8 IPUs cannot have 9 replicas in 3 GCDs: each GCD has the "
            "same number of them, and each of them 1 IPU or more. Ask for a multiple "
            "of 3, up to 6.",
        ),
        (
            {"num_replicas": 0},
            "Partition P would have 0 replicas, but must have 1 or more.",
        ),
        (
            {"num_ilds": 3},
            "Partition P of 8 IPUs cannot be divided into 3 ILDs: their number must be "
            "a power of two, and each has at least one IPU.",
        ),
        (
            {"reconfigurable": True, "sync_type": SyncType.POD_NATIVE_DEFAULT},
            "Partition P would be reconfigurable with sync type pod-native-default, "
            "but a reconfigurable partition has c2-compatible. Leave the sync type "
            "out, or make the partition not reconfigurable.",
        ),
        (
            {"name": "../P"},
            "'../P' is not a valid name for a partition: use up to 64 letters, digits, "
            "dots, dashes and underscores, and begin with a letter or a digit.",
        ),
        (
            {"name": "x" * 65},
            f"'{'x' * 61}...' is not a valid name for a partition: use up to 64 "
            "letters, digits, dots, dashes and underscores, and begin with a letter or "
            "a digit.",
        ),
        (
            {"cluster": "c", "allocation": "a"},
            "Partition P is asked for in allocation a and in cluster c. Give one of "
            "them.",
        ),
    ],
)
def test_what_no_inventory_makes_is_refused(
    changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(VipuRuleError) as refusal:
        partition_rules.check_alone(request(**changes), strict=False)

    assert str(refusal.value) == sentence
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"num_gcds": 3, "gcd_size": 2},
            "Partition P of 8 IPUs cannot be divided equally into 3 GCDs. Ask for a "
            "power of two of them.",
        ),
        (
            {"reconfigurable": True, "num_gcds": 2},
            "Partition P would be reconfigurable with 2 GCDs, but a reconfigurable "
            "partition has one. Leave the GCDs out, or make the partition not "
            "reconfigurable.",
        ),
        (
            {"num_gcds": 1, "num_ilds": 2},
            "Partition P would have 1 GCD in 2 ILDs, but a GCD is within one ILD. Ask "
            "for 2 or more GCDs: a job has one for each instance.",
        ),
    ],
)
def test_a_server_keeps_the_rules_of_the_original(
    changes: dict[str, object], sentence: str
) -> None:
    partition_rules.check_alone(request(**changes), strict=False)
    with pytest.raises(VipuRuleError) as refusal:
        partition_rules.check_alone(request(**changes), strict=True)

    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("cluster", "changes", "shape"),
    [
        (POD64, {"size": 64, "num_gcds": 2}, (1, 64, 32, 2)),
        (POD64, {"size": 64, "num_replicas": 16}, (1, 64, 64, 16)),
        (POD128, {"size": 128, "num_gcds": 4}, (2, 64, 32, 4)),
        (POD128, {"size": 8, "num_ilds": 2, "num_gcds": 2}, (2, 4, 4, 2)),
        (POD128, {"size": 8}, (1, 8, 8, 1)),
    ],
)
def test_what_is_left_open_follows_from_the_cluster(
    cluster: Cluster, changes: dict[str, object], shape: tuple[int, ...]
) -> None:
    own = partition_rules.partition_in(request(**changes), cluster, strict=True)

    share = own.blocks[0].size
    assert (own.num_ilds, share, own.gcd_size, own.num_replicas) == shape
    assert own.blocks == tuple(
        Block(first=64 * n, size=share) for n in range(own.num_ilds)
    )


@pytest.mark.parametrize(
    ("cluster", "changes", "sentence"),
    [
        (
            POD64,
            {"size": 128},
            "Partition P would have 128 IPUs, but cluster c64 has 64. Ask for fewer, "
            "or name a larger cluster.",
        ),
        (
            POD64,
            {"num_ilds": 2},
            "Partition P would span 2 ILDs, but cluster c64 has 1 of 64 IPUs. Ask for "
            "1 or fewer with --num-ilds, or name another cluster.",
        ),
        (
            POD128,
            {"size": 128, "num_ilds": 1},
            "Partition P would have 128 IPUs in each ILD, but the ILDs of cluster c128 "
            "have 64. Ask for 2 ILDs with --num-ilds, or leave that out.",
        ),
        (
            POD128,
            {"size": 128},
            "Partition P of 128 IPUs spans 2 ILDs of cluster c128, so it needs 2 or "
            "more GCDs, and cannot be reconfigurable. Ask for as many: a job has one "
            "for each instance.",
        ),
    ],
)
def test_what_a_cluster_cannot_have_is_refused(
    cluster: Cluster, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(VipuRuleError) as refusal:
        partition_rules.partition_in(request(**changes), cluster, strict=True)

    assert str(refusal.value) == sentence


def job(replicas: int, instances: int, **more: object) -> PartitionRequest:
    arguments = {"ipus_per_replica": 1, "strict": False} | more
    return partition_rules.request_for_job(
        "P", num_replicas=replicas, num_instances=instances, **arguments
    )


def test_a_job_gets_a_gcd_for_each_instance() -> None:
    found = job(8, 4, ipus_per_replica=2, strict=True)

    assert found == PartitionRequest(name="P", size=16, num_gcds=4, num_replicas=8)


@pytest.mark.parametrize(
    ("replicas", "instances", "size", "gcd_size"),
    [(6, 3, 8, 2), (3, 1, 4, 3), (15, 5, 16, 3), (9, 3, 16, 3), (1, 1, 1, None)],
)
def test_an_embedded_inventory_gives_the_next_larger_partition(
    replicas: int, instances: int, size: int, gcd_size: int | None
) -> None:
    found = job(replicas, instances)

    assert (found.size, found.gcd_size) == (size, gcd_size)
    partition_rules.check_alone(found, strict=False)


def test_a_server_refuses_a_job_whose_ipus_are_no_power_of_two() -> None:
    with pytest.raises(VipuRuleError) as refusal:
        job(3, 1, ipus_per_replica=2, strict=True)

    assert str(refusal.value) == (
        "3 replicas of 2 IPUs each need 6 IPUs, but a partition has a power of two. "
        "Ask for replicas and IPUs per replica that make 4 or 8 IPUs."
    )


def test_ilds_of_a_job_are_rounded_up_without_a_server() -> None:
    assert job(3, 3, num_ilds=3).num_ilds == 4
    assert job(3, 3, num_ilds=3).size == 4


@pytest.mark.parametrize(
    "text", ["ringswnc", "ring-swnc", "RINGSWNC", "RT_RINGSWNC", "irt_ringswnc"]
)
def test_an_enumeration_is_read_in_each_of_its_spellings(text: str) -> None:
    assert LinkRouting.read(text) is LinkRouting.RINGSWNC
    assert SyncType.read("ST_POD_NATIVE_DEFAULT") is SyncType.POD_NATIVE_DEFAULT


def test_an_unknown_spelling_gets_those_there_are() -> None:
    with pytest.raises(VipuRuleError) as refusal:
        SyncType.read("fast")

    assert str(refusal.value) == (
        "'fast' is no synchronisation type. There are c2-compatible, "
        "pod-native-default."
    )


@pytest.mark.parametrize(
    ("pod", "machines", "ilds"),
    [
        ("pod4", 1, 1),
        ("pod16", 4, 1),
        ("pod64", 16, 1),
        ("pod128", 32, 2),
        ("pod256", 64, 4),
        ("pod65536", 16384, 1024),
    ],
)
def test_pods_have_a_machine_for_four_ipus_and_a_rack_for_64(
    pod: str, machines: int, ilds: int
) -> None:
    found = presets.preset(pod)

    assert (found.num_machines, found.num_ilds) == (machines, ilds)


@pytest.mark.parametrize(
    ("ipus", "ilds", "pod"),
    [(1, 1, "pod64"), (65, 1, "pod128"), (8, 2, "pod128"), (65536, 1, "pod65536")],
)
def test_a_job_finds_the_smallest_pod_from_64(ipus: int, ilds: int, pod: str) -> None:
    assert presets.pod_for(ipus, ilds) == pod


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        (
            Cluster(name="c", num_ilds=2, ild_size=12),
            "Cluster c would have ILDs of 12 IPUs, but with several ILDs each must "
            "have a power of two. Change the number of agents.",
        ),
        (
            Cluster(name="c", ild_size=68),
            "An ILD of cluster c would have 68 IPUs, but must have 4 for each of its 1 "
            "to 16 IPU-Machines.",
        ),
        (
            Cluster(name="c", num_ilds=2000),
            "Cluster c would have 2000 ILDs, but must have from 1 to 1024.",
        ),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(cluster: Cluster, sentence: str) -> None:
    with pytest.raises(VipuRuleError) as refusal:
        check_cluster(cluster)

    assert str(refusal.value) == sentence
