"""The pods that are sold, and the smallest of them for a job. Pure."""

from typing import Any

from poprun.vipu import model
from poprun.vipu.errors import VipuRuleError
from poprun.vipu.model import ClusterRequest

# By the name of the pod; racks beyond POD256 are joined to up to 1024 of them.
PODS = {f"pod{size}": size for size in (4, 16, 64, 128, 256)} | {
    f"pod{model.LARGEST_ILD * racks}": model.LARGEST_ILD * racks
    for racks in (8, 16, 32, 64, 128, 256, 512, model.MOST_ILDS)
}
# It has room for each partition of one rack.
USUAL_POD = 64


def default_shape(num_ipus: int) -> dict[str, Any]:
    """Return the ILDs and the topology of a cluster: its racks, loops from one on."""
    is_rack = num_ipus >= model.LARGEST_ILD
    topology = model.LinkTopology.TORUS if is_rack else model.LinkTopology.MESH
    return {"num_ilds": -(-num_ipus // model.LARGEST_ILD), "topology": topology}


def preset(pod: str, name: str = "", *, automatic: bool = False) -> ClusterRequest:
    """Return how to make a pod: its racks are ILDs, and loops from 64 IPUs on."""
    size = PODS[pod]
    return ClusterRequest(
        name=name or pod,
        num_machines=size // model.IPUS_PER_MACHINE,
        automatic=automatic,
        **default_shape(size),
    )


def pod_for(num_ipus: int, num_ilds: int = 1) -> str:
    """Return the name of the smallest pod for a job, from POD64 on.

    Raises:
        VipuRuleError: No pod is so large.
    """
    racks = model.next_power_of_two(num_ilds)
    size = max(model.next_power_of_two(num_ipus), racks * model.LARGEST_ILD, USUAL_POD)
    if size > model.MOST_ILDS * model.LARGEST_ILD:
        raise VipuRuleError(
            f"A job of {num_ipus} IPUs in {num_ilds} ILDs is larger than any pod: "
            f"there are at most {model.MOST_ILDS} racks of {model.LARGEST_ILD} IPUs."
        )
    return f"pod{size}"
