"""The pods that are sold, and the smallest of them for a job. Pure."""

from poprun.vipu.errors import VipuRuleError
from poprun.vipu.model import (
    IPUS_PER_MACHINE,
    LARGEST_ILD,
    MOST_ILDS,
    LinkTopology,
    next_power_of_two,
)
from poprun.vipu.requests import ClusterRequest

# By the name of the pod; racks beyond POD256 are joined to up to 1024 of them.
PODS = {f"pod{size}": size for size in (4, 16, 64, 128, 256)} | {
    f"pod{LARGEST_ILD * racks}": LARGEST_ILD * racks
    for racks in (8, 16, 32, 64, 128, 256, 512, MOST_ILDS)
}
# It has room for each partition of one rack.
USUAL_POD = 64


def preset(pod: str, name: str = "", *, automatic: bool = False) -> ClusterRequest:
    """Return how to make a pod: its racks are ILDs, and loops from 64 IPUs on.

    Raises:
        VipuRuleError: There is no such pod.
    """
    size = PODS.get(pod.lower())
    if size is None:
        raise VipuRuleError(f"{pod[:40]!r} is not a pod. There are {', '.join(PODS)}.")
    return ClusterRequest(
        name=name or pod.lower(),
        num_machines=size // IPUS_PER_MACHINE,
        num_ilds=max(1, size // LARGEST_ILD),
        topology=LinkTopology.TORUS if size >= LARGEST_ILD else LinkTopology.MESH,
        automatic=automatic,
    )


def pod_for(num_ipus: int, num_ilds: int = 1) -> str:
    """Return the name of the smallest pod for a job, from POD64 on.

    Raises:
        VipuRuleError: No pod is so large.
    """
    racks = next_power_of_two(num_ilds)
    size = max(next_power_of_two(num_ipus), racks * LARGEST_ILD, USUAL_POD)
    if size > MOST_ILDS * LARGEST_ILD:
        raise VipuRuleError(
            f"A job of {num_ipus} IPUs in {num_ilds} ILDs is larger than any pod: "
            f"there are at most {MOST_ILDS} racks of {LARGEST_ILD} IPUs."
        )
    return f"pod{size}"
