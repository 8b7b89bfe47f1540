"""torch.distributed's process group over the engine's shared memory."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from popdist.engine.meet.meeting import Meeting
from popdist.engine.meet.pidfds import Pidfd
from popdist.session import STATE
from popdist.torch.backend.stored_links import root_in, server_of
from popdist.torch.backend.stored_name import StoredName
from popdist.torch.calls.arguments import check_exchanged, listed, refuse, single
from popdist.torch.calls.group_calls import Tensors
from popdist.torch.calls.group_exchanges import ExchangeCalls
from popdist.torch.calls.group_reductions import ReductionCalls
from popdist.torch.calls.untraced import untraced
from popdist.torch.calls.work import EngineWork, backend_errors
from popdist.torch.channels import Channels, Message
from popdist.torch.monitored_barrier import MonitoredBarrier
from popdist.torch.tensor_rows import empty_in

_CPU = torch.device("cpu")
DEFAULT_TIMEOUT = timedelta(minutes=30)


# The methods of the bases take what torch's overloads do, in one signature.
@untraced
class ProcessGroupPopdist(  # type: ignore[misc]
    ReductionCalls, ExchangeCalls, dist.ProcessGroup
):
    """A process group of processes on one host, or of instances."""

    # torch's name for the group, and its purpose. torch keeps these in backends in C++,
    # and this group has none.
    group_name: Any = ""
    group_desc = ""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta = DEFAULT_TIMEOUT,
        *,
        ranks: Sequence[int] = (),
        parent: dist.ProcessGroup | None = None,
    ) -> None:
        """Meet the other members, and return when all have called this.

        Args:
            store: Shared by the members, and by no other group at the same time.
            rank: This member.
            size: How many members there are.
            timeout: How long a call waits for the others.
            ranks: The numbers of the members in errors; by default from 0 on.
            parent: The default group, which has these members; None if this is it.
        """
        # Only this constructor of torch's makes a group that Python can extend.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store = store
        members = tuple(ranks) or tuple(range(size))
        numbering = (parent.rank(), parent.size()) if parent else (rank, size)
        with backend_errors():
            job, name = STATE.job, StoredName(store, rank)
            are_instances = job.has_numbering(*numbering)
            host = job.place.host_index if are_instances and parent is None else None
            if host is not None and server_of(store):
                STATE.look_up_links = partial(root_in, store, rank, host)
            meeting = Meeting(
                name=name.chosen or name.look_up,
                rank=rank,
                instances=members,
                timeout=timeout.total_seconds(),
                stall=STATE.settings.stall,
                known=_known_to(parent),
                ended_file=job.ended_file_of(*numbering),
                why_over=STATE.why_over(),
            )
            group = STATE.new_group(meeting, are_instances=are_instances)
        if parent is None:
            name.compare_torch(members[0], members[rank])
        self._use(group, timeout)
        self._channels = Channels(
            name.chosen, group, meeting, are_instances=are_instances
        )
        # How many monitored barriers this member has been in.
        self._barriers = 0

    # --- The methods that torch.distributed calls

    def getBackendName(self) -> str:
        """Return "popdist"."""
        return "popdist"

    _get_backend_name = getBackendName
    name = getBackendName

    def _set_group_name(self, name: str) -> None:
        self.group_name = name

    def _set_group_desc(self, desc: str) -> None:
        self.group_desc = desc

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    def getGroupName(self) -> Any:
        """Return torch's name of the group."""
        return self.group_name

    def getGroupDesc(self) -> str:
        """Return the purpose of the group."""
        return self.group_desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    def _get_backend(self, device: torch.device) -> Any:
        """Return the object that allocates tensors and has the options: the group."""
        if torch.device(device).type != "cpu":
            refuse("group", f"no backend for device {device}: it takes CPU tensors.")
        return self

    def get_group_store(self) -> Store:
        """Return the store that the members share."""
        return self._store

    @property
    def options(self) -> "ProcessGroupPopdist":
        """The object with the attribute `_timeout`: the group itself."""
        return self

    supports_splitting = False
    supports_coalescing = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return whether allocate_tensor() makes tensors for this device."""
        return torch.device(device).type == "cpu"

    def allocate_tensor(
        self, size: int, *, dtype: torch.dtype, device: torch.device = _CPU
    ) -> Tensor:
        """Return a new tensor in the arena, where the members reduce it in place."""
        return empty_in(self._group, (size,), dtype)

    def set_timeout(self, timeout: timedelta) -> None:
        """Let calls from now on wait so long for the other members."""
        self._timeout = timeout
        self._group.set_timeout(timeout.total_seconds())

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leave the group, when the calls under way are over."""
        self._channels.close()
        self._group.close()

    def abort(self) -> None:
        """End the group for all members."""
        self._channels.close()
        self._group.abort("A member called abort().")

    def _get_sequence_number_for_group(self) -> int:
        """Return how many calls this member has made, messages not counted.

        One with async_op=True counts at once, though it may not have begun.
        """
        return self._calls_made + self._in_core.made

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: all members count from the same number."""

    # --- Waiting

    def barrier(  # type: ignore[override]
        self, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Wait until all members have called it."""
        return self._call("barrier", self._carrier.barrier, None, opts, timeout)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait until all members have called it; member 0 names those that do not.

        Raises:
            DistBackendError: Some do not call it in time, or member 0 does not.
        """
        limit = (self._timeout if timeout is None else timeout).total_seconds()
        self._barriers += 1
        barrier = MonitoredBarrier(self._channels, self._barriers, limit)
        with backend_errors():
            if self._group.rank:
                barrier.report()
            else:
                barrier.collect(wait_all_ranks)

    # --- Messages

    def send(self, tensors_: Tensors, to: int, tag: int = 0) -> Any:
        """Send a tensor to a member."""
        tensor = single("send", listed(tensors_), "tensor list")
        self._check_peer("send", to)
        send = partial(self._channels.send, tensor, to, tag)
        return _message_work(send, tensor, self._send_seconds)

    def recv(self, tensors_: Tensors, source: int, tag: int = 0) -> Any:
        """Receive a tensor from a member."""
        self._check_peer("recv", source)
        return self._receive(tensors_, source, tag)

    def recv_anysource(self, tensors_: Tensors, tag: int = 0) -> Any:
        """Receive a tensor from any member."""
        return self._receive(tensors_, None, tag)

    def _receive(self, tensors_: Tensors, source: int | None, tag: int) -> EngineWork:
        tensor = single("recv", listed(tensors_), "tensor list")
        check_exchanged("recv", (), tensor)
        receive = partial(self._channels.receive, tensor, source, tag)
        return _message_work(receive, tensor, self._timeout.total_seconds)

    def _send_seconds(self) -> float:
        # The receiver's timeout comes first, and says more.
        return 2 * self._timeout.total_seconds() + 60

    def _check_peer(self, call: str, peer: int) -> None:
        if peer == self._group.rank or not 0 <= peer < self._group.size:
            refuse(call, f"invalid rank: {peer} is not another member of the group.")


def _known_to(group: dist.ProcessGroup | None) -> dict[int, Pidfd]:
    """Return a pidfd of each other member that a group has met."""
    return group.engine_group.pidfds if isinstance(group, ProcessGroupPopdist) else {}


def _message_work(
    start: Callable[[], Message], tensor: Tensor, timeout: Callable[[], float]
) -> EngineWork:
    with backend_errors():
        return EngineWork(start(), [tensor], timeout)
