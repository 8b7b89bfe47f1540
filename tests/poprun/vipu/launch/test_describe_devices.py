"""What Poplar is told of the devices of a job."""

from collections.abc import Callable

from poprun.vipu.launch.describe_devices import target_options
from poprun.vipu.leases import Grant
from poprun.vipu.requests import PartitionRequest


def test_v_ipu_counts_more_than_the_device_and_the_environment_more_than_both(
    launch: Callable[..., Grant],
) -> None:
    request = PartitionRequest("P", 32, reconfigurable=True)
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
