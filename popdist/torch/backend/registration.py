"""The backend "popdist" of torch.distributed."""

from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import (
    _rendezvous_handlers,
    register_rendezvous_handler,
)

from popdist.torch.backend.mixed import serve_mixed_groups
from popdist.torch.backend.process_group import ProcessGroupPopdist
from popdist.torch.backend.rendezvous import by_environment, rendezvous

BACKEND = "popdist"


def register() -> None:
    """Make the backend known to torch.distributed, for tensors on the CPU."""
    # poprun's entry point for torch may have registered it, and calls this one then.
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(
            BACKEND, new_group, extended_api=True, devices=["cpu"]
        )
        # torch declares no types for it.
        register_rendezvous_handler(BACKEND, rendezvous)  # type: ignore[no-untyped-call]
    _rendezvous_handlers["env"] = by_environment(_rendezvous_handlers["env"])
    serve_mixed_groups(BACKEND)
    _replace_monitored_barrier()
    _replace_flight_recorder()


# Any, because torch does not name the type of the options.
def new_group(options: Any, _: Any) -> ProcessGroupPopdist:
    """Return a process group, for torch.distributed."""
    return ProcessGroupPopdist(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        ranks=options.global_ranks_in_group,
        parent=dist.group.WORLD if dist.is_initialized() else None,
    )


def _replace_monitored_barrier() -> None:
    """Let torch.distributed.monitored_barrier take groups of this backend.

    torch's refuses all that are not gloo's.
    """
    usual = distributed_c10d.monitored_barrier

    @wraps(usual)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        chosen = group
        if group is None and dist.is_initialized():
            chosen = dist.group.WORLD
        if not isinstance(chosen, ProcessGroupPopdist):
            return usual(group, timeout, wait_all_ranks)
        if isinstance(timeout, int | float):
            timeout = timedelta(seconds=timeout)
        return chosen.monitored_barrier(timeout, wait_all_ranks)

    for module in (dist, distributed_c10d):
        setattr(module, "monitored_barrier", monitored_barrier)  # noqa: B010 (for mypy)


def _replace_flight_recorder() -> None:
    """Let torch attach its flight recorder to no group of this backend.

    torch 2.15 attaches one to each group without a backend in C++. A process group in
    Python has no backend at all, so attaching one fails.
    """
    usual = getattr(distributed_c10d, "_maybe_attach_flight_recorder", None)
    if usual is None:
        return

    @wraps(usual)
    def attach(group: dist.ProcessGroup, *others: Any) -> None:
        if not isinstance(group, ProcessGroupPopdist):
            usual(group, *others)

    setattr(distributed_c10d, usual.__name__, attach)
