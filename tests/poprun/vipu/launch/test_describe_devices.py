"""What Poplar is told of the devices of a job."""

from collections.abc import Callable

from poprun.vipu.launch.describe_devices import parent_device_lines, target_options
from poprun.vipu.leases import Grant
from poprun.vipu.requests import PartitionRequest


def test_v_ipu_counts_more_than_the_device_and_the_environment_more_than_both(
    launch: Callable[..., Grant],
) -> None:
    request = PartitionRequest(name="P", size=32, reconfigurable=True)
    grant = launch("P", instances=2, replicas=4, create=request)
    options = target_options(grant, {"instanceSize": "7", "own": "x"})

    assert options.device is not None
    assert options.device["ipuLinkDomainSize"] == "64"
    assert options.partition["ipuLinkDomainSize"] == "32"
    assert options.merged == {
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
    lines = parent_device_lines(grant, target_options(grant, {}))

    assert [text for _, text in lines[:4]] == [
        "Found 32 devices with 2 IPUs",
        "Failed to attach to device 64",
        "Attached to device 65",
        "Found 2 children (expected 2) of device 65 with 1 IPUs each",
    ]
