"""Groups in which popdist reduces CPU tensors, and another backend all others.

A process group in Python has all devices for torch. This one passes calls with tensors
of other devices on to a group of torch's own.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from popdist.torch.backend.process_group import ProcessGroupPopdist
from popdist.torch.calls.untraced import untraced

# Any, because torch declares no types for its private names.
_c10d: Any = distributed_c10d
_CPU = torch.device("cpu")
# All methods that take tensors or a device; older versions of torch call fewer.
_PASSED_ON = """
    _allgather_base _end_coalescing _reduce_scatter_base _start_coalescing
    all_gather_single all_gather_single_coalesced all_to_all_single allgather
    allgather_coalesced allgather_into_tensor_coalesced allocate_tensor allreduce
    allreduce_coalesced alltoall alltoall_base barrier broadcast gather recv
    recv_anysource reduce reduce_scatter reduce_scatter_single
    reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced scatter send
    supports_tensor_alloc
"""


@untraced
class MixedGroup(ProcessGroupPopdist):
    """A group of popdist that has a group of torch's own for other devices."""

    device_group: dist.ProcessGroup

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU, *self.device_group._device_types]

    def _get_backend(self, device: torch.device) -> Any:
        """Return the backend of a device: for the CPU the group itself."""
        if torch.device(device).type == "cpu":
            return self
        return self.device_group._get_backend(device)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long later calls wait for the other members."""
        super().set_timeout(timeout)
        self.device_group.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leave the group when the calls in progress have ended."""
        self.device_group.shutdown()
        super().shutdown()

    def abort(self) -> None:
        """End the group for all members."""
        self.device_group.abort()
        super().abort()


def _pass_on(name: str) -> Callable[..., Any]:
    """Return a method that passes calls about other devices on to their group."""
    usual = getattr(ProcessGroupPopdist, name)

    @wraps(usual)
    def call(self: MixedGroup, *args: Any, **kwargs: Any) -> Any:
        devices = _devices_in((*args, *kwargs.values()))
        if any(device.type != "cpu" for device in devices):
            return getattr(self.device_group, name)(*args, **kwargs)
        return usual(self, *args, **kwargs)

    return untraced(call)


# Any, because calls take options of many types.
def _devices_in(values: Iterable[Any]) -> Iterator[torch.device]:
    for value in values:
        if isinstance(value, torch.device):
            yield value
        elif isinstance(value, list | tuple):
            yield from _devices_in(value)
        elif isinstance(value, torch.Tensor | dist.BarrierOptions):
            # The options of a barrier may name none.
            yield value.device or _CPU


for _name in _PASSED_ON.split():
    setattr(MixedGroup, _name, _pass_on(_name))


def serve_mixed_groups(own: str) -> None:
    """Let torch make mixed groups if a program names `own` only for the CPU.

    torch has one function that makes groups, whichever of its calls asks for one.
    """
    usual = _c10d._new_process_group_helper
    names = inspect.signature(usual).parameters

    def make(given: dict[str, Any], **changes: Any) -> Any:
        known = {name: value for name, value in changes.items() if name in names}
        return usual(**given | known)

    @wraps(usual)
    def new_process_group(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(usual).bind(*args, **kwargs).arguments
        config = _c10d.BackendConfig(given["backend"])
        devices = config.get_device_backend_map()
        if devices.get("cpu") != own or ":" not in given["backend"]:
            return usual(*args, **kwargs)
        alone = {"backend": dist.Backend(own), "backend_options": None}
        group, store = make(given, **alone, device_id=None)
        # This process is not a member, or the group existed before.
        if type(group) is not ProcessGroupPopdist:
            return group, store
        pairs = [f"{d}:{b}" for d, b in devices.items() if b != own and _is_present(d)]
        if pairs:
            name = f"{given['group_name']}:devices"
            changes = {"backend": ",".join(pairs), "group_name": name, "pg_tag": None}
            device_group, _ = make(given, **changes)
            _forget(device_group, name)
            group.__class__ = MixedGroup
            vars(group)["device_group"] = device_group
        _c10d._world.pg_map[group] = (given["backend"], store)
        _c10d._world.pg_backend_config[group] = str(config)
        return group, store

    setattr(_c10d, usual.__name__, new_process_group)


def _is_present(device: str) -> bool:
    """Return whether this machine has a device of a type."""
    is_available = getattr(getattr(torch, device, None), "is_available", None)
    return is_available is None or bool(is_available())


def _forget(group: dist.ProcessGroup, name: Any) -> None:
    """Take a group out of torch's tables: the mixed group alone shuts it down."""
    world = _c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_backend_config):
        del table[group]
    for groups in ("", world.pg_to_tag.pop(group)):
        if group in world.tags_to_pg.get(groups, []):
            world.tags_to_pg[groups].remove(group)
    _c10d._unregister_process_group(name)
