"""PyTorch on popdist: after `import popdist.torch`, torch.distributed has a backend.

    dist.init_process_group("popdist")

Below poprun it needs no address and no port.
"""

from popdist.torch.backend_registration import register
from popdist.torch.process_group import ProcessGroupPopdist

__all__ = ["ProcessGroupPopdist"]

register()
