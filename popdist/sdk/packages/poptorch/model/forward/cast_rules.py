"""What a policy of automatic casts says about each operation of torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from ...autocasting import Policy, is_module_class
from ...enums import HalfFloatCastingBehavior
from ...regions import Region, Rule

# Names of the same operation.
_ALIASES = {
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "linalg_cross": "cross",
    "linalg_matmul": "matmul",
    "multiply": "mul",
    "subtract": "sub",
    "true_divide": "div",
    "truediv": "div",
}
_OPERATORS = frozenset({"add", "div", "matmul", "mod", "mul", "pow", "sub", "truediv"})
# What takes float16 beside float32 neither forward nor backward.
_NOT_MIXED_NAMES = """
addbmm addmm addmv addr allclose baddbmm bilinear binary_cross_entropy bmm
chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
conv_transpose3d convolution cross cross_entropy dot einsum embedding_bag
grid_sample grid_sampler gru gru_cell huber_loss index_add index_copy index_put
inner lerp linalg_multi_dot linear lstm lstm_cell masked_scatter matmul mm mv
nll_loss prelu rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell
scaled_dot_product_attention scatter scatter_add scatter_reduce tensordot vdot
"""
_NOT_MIXED = frozenset(_NOT_MIXED_NAMES.split())
# What takes inputs of float16 beside weights of float32, but not the reverse.
NORMS = frozenset({"batch_norm", "group_norm", "instance_norm", "layer_norm"})
# What computes nothing: explicit conversions, and what asks or changes a tensor.
_KEPT_NAMES = """
backward bfloat16 copy data_ptr detach dim double element_size float half
is_contiguous is_floating_point item ndimension nelement numel numpy register_hook
retain_grad size stride to tolist type type_as
"""
_KEPT = frozenset(_KEPT_NAMES.split())


@dataclass(frozen=True, slots=True)
class TorchOperation:
    """An operation of torch by its name."""

    name: str
    in_place: bool
    # Whether a module's rule holds for it, too.
    computes: bool


@cache
def operation_of(name: str) -> TorchOperation:
    """Return the operation that a function or method of this name does."""
    if name.startswith("__"):
        inner = name.strip("_")
        reverse = inner[1:] if inner[:1] in ("r", "i") else ""
        if inner == "setitem":
            return TorchOperation("index_put", True, False)
        if inner in _OPERATORS:
            return TorchOperation(_ALIASES.get(inner, inner), False, True)
        if reverse in _OPERATORS:
            return TorchOperation(_ALIASES.get(reverse, reverse), inner[0] == "i", True)
        return TorchOperation(name, False, False)
    plain = name.rstrip("_").removeprefix("_VF.")
    if plain == "rsub":
        plain = "sub"
    plain = _ALIASES.get(plain, plain)
    return TorchOperation(plain, name.endswith("_"), plain not in _KEPT)


class CastRules:
    """What the options of a model say about automatic casts."""

    def __init__(self, policy: Policy, mixed: HalfFloatCastingBehavior) -> None:
        lists = (
            (policy.fp16, Rule(torch.float16, False)),
            (policy.fp32, Rule(torch.float32, False)),
            (policy.promote, Rule(torch.float32, True)),
            (policy.demote, Rule(torch.float16, True)),
        )
        up = mixed == HalfFloatCastingBehavior.HalfUpcastToFloat
        self._mixed = Rule(torch.float32 if up else torch.float16, True)
        self._operations: dict[str, Rule] = {}
        self._modules: list[tuple[type[nn.Module], Rule]] = []
        for entries, rule in lists:
            for entry in entries:
                if is_module_class(entry):
                    self._modules.append((entry, rule))
                else:
                    name = operation_of(entry.__name__).name
                    self._operations.setdefault(name, rule)
        self._described = f"CastRules({policy!r}, {mixed!r})"

    def __repr__(self) -> str:
        # A part of the key of a model in the executable cache: without addresses.
        return self._described

    def of_module(self, module: nn.Module) -> Rule | None:
        """Return the rule of a module's class, None if the policy has none."""
        for cls, rule in self._modules:
            if isinstance(module, cls):
                return rule
        return None

    def of(self, operation: TorchOperation, region: Region) -> Rule | None:
        """Return the rule of an operation in a region, None if it takes its inputs."""
        rule = None
        if region.enabled:
            rule = self._operations.get(operation.name)
            if rule is None and operation.computes:
                rule = region.module_rule
        if rule is None and (operation.name in _NOT_MIXED or operation.name in NORMS):
            rule = self._mixed
        return rule


# Any: whatever torch's operations take.
def casts_to(rule: Rule, values: Iterable[Any]) -> torch.dtype | None:
    """Return what floating-point inputs are cast to, None if they are left."""
    if not rule.only_mixed:
        return rule.dtype
    dtypes = _dtypes(values)
    return rule.dtype if {torch.float16, torch.float32} <= dtypes else None


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a value with all of its float16 and float32 tensors cast to one dtype."""
    if isinstance(value, torch.Tensor):
        short = value.dtype is torch.float16 or value.dtype is torch.float32
        return value.to(dtype) if short and value.dtype is not dtype else value
    if type(value) is list or type(value) is tuple:
        return type(value)(cast(part, dtype) for part in value)
    return value


def _dtypes(values: Iterable[Any]) -> set[torch.dtype]:
    dtypes: set[torch.dtype] = set()
    for value in values:
        if isinstance(value, torch.Tensor):
            dtypes.add(value.dtype)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            dtypes |= _dtypes(value)
    return dtypes
