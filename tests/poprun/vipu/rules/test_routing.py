"""Target options as they were observed on real partitions."""

import json
from dataclasses import replace

import pytest

from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.model import LinkRouting, Partition, PartitionRequest, SyncType
from poprun.vipu.rules import routing


def compact(options: dict[str, str]) -> str:
    return json.dumps(options, separators=(",", ":"))


def make(inventory: EmbeddedInventory, **changes: object) -> Partition:
    request = replace(PartitionRequest(name="p", size=64), **changes)
    return inventory.create_partition(request)


@pytest.mark.parametrize(
    ("changes", "instances", "options"),
    [
        pytest.param(
            {"size": 4, "reconfigurable": True},
            1,
            '{"ipuLinkDomainSize":"4","ipuLinkConfiguration":"default",'
            '"ipuLinkTopology":"mesh","gatewayMode":"true","instanceSize":"4"}',
            id="reconfigurable-4",
        ),
        pytest.param(
            {"reconfigurable": True, "num_ipus": 2},
            2,
            '{"ipuLinkDomainSize":"64","ipuLinkConfiguration":"slidingWindow",'
            '"ipuLinkTopology":"mesh","gatewayMode":"true","instanceSize":"32"}',
            id="part-of-reconfigurable-64",
        ),
        pytest.param(
            {"reconfigurable": True, "num_ipus": 64},
            2,
            '{"ipuLinkDomainSize":"64","ipuLinkConfiguration":"slidingWindow",'
            '"ipuLinkTopology":"torus","gatewayMode":"true","instanceSize":"32"}',
            id="reconfigurable-64",
        ),
        pytest.param(
            {},
            1,
            '{"ipuLinkDomainSize":"64","ipuLinkConfiguration":"slidingWindow",'
            '"ipuLinkTopology":"torus","gatewayMode":"true","instanceSize":"64"}',
            id="pod-native-64",
        ),
        pytest.param(
            {"size": 8, "num_gcds": 3, "gcd_size": 2},
            3,
            '{"ipuLinkDomainSize":"8","ipuLinkConfiguration":"default",'
            '"ipuLinkTopology":"mesh","gatewayMode":"true","instanceSize":"2"}',
            id="no-power-of-two",
        ),
    ],
)
def test_v_ipu_reports_target_options(
    inventory: EmbeddedInventory,
    changes: dict[str, object],
    instances: int,
    options: str,
) -> None:
    num_ipus = changes.pop("num_ipus", None)
    partition = make(inventory, **changes)

    assert isinstance(num_ipus, int | None)
    found = routing.partition_target_options(partition, instances, num_ipus)
    assert compact(found) == options


def test_a_parent_device_reports_the_hardware(inventory: EmbeddedInventory) -> None:
    partition = make(inventory, reconfigurable=True)
    device = routing.device_target_options(partition, num_ipus=2, num_instances=2)

    assert compact(device) == (
        '{"ipuLinkDomainSize":"64","ipuLinkConfiguration":"default",'
        '"ipuLinkTopology":"mesh","gatewayMode":"true","instanceSize":"1"}'
    )
    assert routing.describe_device(64, device) == (
        "Device 64 ipuLinkDomainSize=64, ipuLinkConfiguration=Default, "
        "ipuLinkTopology=Mesh, gatewayMode=true, instanceSize=1"
    )


def test_a_parent_device_that_is_a_whole_rack_is_a_torus(
    inventory: EmbeddedInventory,
) -> None:
    partition = make(inventory, reconfigurable=True)
    device = routing.device_target_options(partition, num_ipus=64, num_instances=4)

    assert routing.describe_device(126, device) == (
        "Device 126 ipuLinkDomainSize=64, ipuLinkConfiguration=SlidingWindow, "
        "ipuLinkTopology=Torus, gatewayMode=true, instanceSize=16"
    )


@pytest.mark.parametrize(
    ("changes", "routed", "sync"),
    [
        ({}, LinkRouting.RINGSWNC, SyncType.POD_NATIVE_DEFAULT),
        ({"size": 32}, LinkRouting.DNC, SyncType.POD_NATIVE_DEFAULT),
        ({"reconfigurable": True}, LinkRouting.RINGSWNC, SyncType.C2_COMPATIBLE),
        (
            {"link_routing": LinkRouting.BTNC, "sync_type": SyncType.C2_COMPATIBLE},
            LinkRouting.BTNC,
            SyncType.C2_COMPATIBLE,
        ),
    ],
)
def test_a_whole_rack_is_routed_as_a_ring(
    inventory: EmbeddedInventory,
    changes: dict[str, object],
    routed: LinkRouting,
    sync: SyncType,
) -> None:
    partition = make(inventory, **changes)

    assert (partition.link_routing, partition.sync_type) == (routed, sync)
