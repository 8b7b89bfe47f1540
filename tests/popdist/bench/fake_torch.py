"""The parts of torch that the bench uses, in case torch is not installed."""

from types import ModuleType
from typing import Any

from popdist.bench.inputs import Array


class Distributed(ModuleType):
    """A group of two members that give equal tensors."""

    def __init__(self) -> None:
        super().__init__("torch.distributed")
        self.joined: list[tuple[str, dict[str, Any]]] = []
        self.left = 0
        self.calls: list[tuple[str, Any, Any]] = []

    def is_initialized(self) -> bool:
        return bool(self.joined)

    def new_group(self, backend: str) -> str:
        return f"a group of {backend}"

    def init_process_group(self, backend: str, **more: Any) -> None:
        self.joined.append((backend, more))

    def destroy_process_group(self) -> None:
        self.left += 1

    def reduce_scatter_tensor(self, output: "Tensor", tensor: "Tensor") -> None:
        self.calls.append(("reduce_scatter_tensor", output.array, tensor.array))

    def all_gather_into_tensor(self, output: "Tensor", tensor: "Tensor") -> None:
        self.calls.append(("all_gather_into_tensor", output.array, tensor.array))

    def all_reduce(self, tensor: "Tensor", group: Any = None) -> None:
        self.calls.append(("all_reduce", tensor.array, group))
        tensor.array += tensor.array


class Tensor:
    def __init__(self, array: Array) -> None:
        self.array: Any = array


class Torch(ModuleType):
    """The module torch."""

    __version__ = "2.0+fake"
    from_numpy = Tensor

    def __init__(self) -> None:
        super().__init__("torch")
        self.distributed = Distributed()
