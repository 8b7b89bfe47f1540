"""Makes the backend "popdist" known to torch.distributed, at `import torch`.

torch calls register() in every program of an environment that has poprun, as an entry
point of the group torch.backends. So this module imports nothing that torch has not
imported, and does nothing outside poprun unless POPDIST_TORCH_BACKEND is set. The
backend imports popdist.torch when a program makes its first group.
"""

import logging
import os
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

# Spelled in popdist/environment.py too, which is slower to import than all of this.
NUM_TOTAL_REPLICAS = "POPDIST_NUM_TOTAL_REPLICAS"
TORCH_BACKEND = "POPDIST_TORCH_BACKEND"
BACKEND, REPLACED = "popdist", "gloo"


def register() -> None:
    """Register the backend in programs that poprun starts; never raise an error.

    An error would fail the program's `import torch`.
    """
    setting = os.environ.get(TORCH_BACKEND)
    if not dist.is_available() or not (setting or NUM_TOTAL_REPLICAS in os.environ):
        return
    try:
        _register()
        _replace_init(setting)
        if setting and setting != REPLACED:
            _replace_gloo(setting)
    except Exception as error:
        logging.getLogger(__name__).warning(
            "torch %s has no backend popdist after `import torch`: %r. Import "
            "popdist.torch in the program, and name the backend there.",
            torch.__version__,
            error,
        )


def _register() -> None:
    from torch.distributed.rendezvous import register_rendezvous_handler

    dist.Backend.register_backend(
        BACKEND, _new_group, extended_api=True, devices=["cpu"]
    )
    # torch declares no types for it.
    register_rendezvous_handler(BACKEND, _rendezvous)  # type: ignore[no-untyped-call]


# Any in what follows, because torch does not name the types.
def _new_group(options: Any, backend_options: Any) -> Any:
    from popdist.torch.backend.registration import new_group

    return new_group(options, backend_options)


def _rendezvous(*args: Any, **kwargs: Any) -> Any:
    from popdist.torch.backend.rendezvous import rendezvous

    return rendezvous(*args, **kwargs)


def _replace_init(setting: str | None) -> None:
    """Import popdist.torch before a program's first group with this backend.

    It registers how the members meet, too, which they do first.
    """
    from torch.distributed import device_mesh, distributed_c10d

    def importing(usual: Any) -> Any:
        @wraps(usual)
        def make_group(*args: Any, **kwargs: Any) -> Any:
            texts = [a for a in (*args, *kwargs.values()) if isinstance(a, str)]
            if setting == BACKEND or any(BACKEND in text.lower() for text in texts):
                import popdist.torch.backend.registration  # noqa: F401
            group = usual(*args, **kwargs)
            if usual.__name__ == "init_process_group":
                _observe()
            return group

        return make_group

    for name in ("init_process_group", "new_group"):
        replacement = importing(getattr(distributed_c10d, name))
        for module in (dist, distributed_c10d, device_mesh):
            if hasattr(module, name):
                setattr(module, name, replacement)


def _observe() -> None:
    """Show poprun the calls of the program's groups, which are not of this backend."""
    from poprun.interpreter import torch_calls

    try:
        torch_calls.observe()
    except Exception as error:
        logging.getLogger(__name__).debug("poprun sees no calls of gloo: %r", error)


def _replace_gloo(setting: str) -> None:
    """Let groups that a program makes with gloo for the CPU have this backend.

    torch has one function that makes groups, whichever of its calls asks for one.
    """
    from torch.distributed import distributed_c10d

    usual = distributed_c10d._new_process_group_helper

    @wraps(usual)
    def new_process_group(
        size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if setting != BACKEND:
            raise ValueError(
                f"{TORCH_BACKEND} is {setting!r}, but must be {BACKEND} or {REPLACED}."
            )
        config = distributed_c10d.BackendConfig(backend)
        if not is_for_cpu(config.get_device_backend_map()):
            return usual(size, rank, ranks, backend, *args, **kwargs)
        ours = dist.Backend(BACKEND)
        group, store = usual(size, rank, ranks, ours, *args, **kwargs)
        if store is not None:
            # get_backend() returns this: programs choose devices and calls by it, and
            # new_group() chooses the backend of the next group.
            world = distributed_c10d._world
            world.pg_map[group] = (backend, store)
            world.pg_backend_config[group] = str(config)
        return group, store

    setattr(distributed_c10d, usual.__name__, new_process_group)


def is_for_cpu(devices: dict[str, Any]) -> bool:
    """Return whether gloo is for the CPU, and other backends for absent devices."""
    others = set(devices.values()) - {REPLACED}
    return devices.get("cpu") == REPLACED and not (
        others and torch.accelerator.is_available()
    )
