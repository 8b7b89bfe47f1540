"""Automatic casts between float16 and float32, where a model asks for them.

Regions of a forward pass, and modules, ask for casts; a policy names the operations and
their types. The casts are made while an executor runs the model. Any: torch's functions
and modules take and return objects of all kinds.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import FunctionType
from typing import Any, Self, TypeGuard

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from popdist.framework_names import TORCH

from .enums import HalfFloatCastingBehavior
from .execution import Execution, Region, Rule, current

# A function of torch, or a class of modules.
PolicyEntry = Callable[..., Any]

# The attribute of a module that has asked, or has asked for none.
SETTING = "_poptorch_autocast"


class autocast(ContextDecorator):
    """A region with automatic casts, or without: a `with` block, or a function.

    Outside of an executor's forward pass it has no effect.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def __enter__(self) -> Self:
        execution = current()
        if execution is not None:
            execution.regions.enter(bool(self.enabled))
        return self

    def __exit__(self, *exception: object) -> None:
        execution = current()
        if execution is not None:
            execution.regions.leave()


class Policy:
    """Four lists of operations and modules, one for each kind of cast.

    `fp16` casts to float16, `fp32` to float32. `promote` casts inputs of both types to
    float32, `demote` to float16. The first list that has one counts.
    """

    def __init__(
        self,
        fp16: Iterable[PolicyEntry] | None = None,
        fp32: Iterable[PolicyEntry] | None = None,
        promote: Iterable[PolicyEntry] | None = None,
        demote: Iterable[PolicyEntry] | None = None,
    ) -> None:
        """Take functions of torch and classes of modules.

        Raises:
            ValueError: An entry is none of these.
        """
        self.fp16 = list(fp16 or ())
        self.fp32 = list(fp32 or ())
        self.promote = list(promote or ())
        self.demote = list(demote or ())
        for entry in chain.from_iterable(vars(self).values()):
            if not is_module_class(entry) and (
                isinstance(entry, type) or not hasattr(entry, "__name__")
            ):
                raise ValueError(
                    f"{entry!r} is in a list of a poptorch.autocasting.Policy, but is "
                    "neither a function of torch nor a class of modules. Give one "
                    "such as torch.matmul or torch.nn.Conv2d."
                )

    def __repr__(self) -> str:
        lists = (
            f"{name}={[entry.__name__ for entry in entries]}"
            for name, entries in vars(self).items()
        )
        return f"Policy({', '.join(lists)})"


def is_module_class(entry: object) -> TypeGuard[type[nn.Module]]:
    """Return whether an entry of a policy is a class of modules."""
    return isinstance(entry, type) and issubclass(entry, nn.Module)


def _set_autocast(module: nn.Module, enabled: bool = True) -> None:
    """Run this module, and those in it that have no setting, with automatic casts."""
    setattr(module, SETTING, bool(enabled))


nn.Module.autocast = _set_autocast  # type: ignore[attr-defined]

_FP16 = """
addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc
conv_transpose1d conv_transpose2d conv_transpose3d convolution matmul mm mv
"""
_PROMOTE = """
addcdiv addcmul atan2 bilinear cat cross dot equal index_put stack tensordot
"""
default_fp16: list[PolicyEntry] = [
    *(getattr(torch, name) for name in _FP16.split()),
    functional.linear,
    functional.scaled_dot_product_attention,
    nn.Conv2d,
]
default_fp32: list[PolicyEntry] = []
default_promote: list[PolicyEntry] = [getattr(torch, name) for name in _PROMOTE.split()]
default_demote: list[PolicyEntry] = []
default = Policy(default_fp16, default_fp32, default_promote, default_demote)

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
# Where torch has its operations.
_NAMESPACES = (torch, torch.Tensor, functional, torch.ops.aten)


def _operations(names: str) -> frozenset[str]:
    """Return the operations of these names.

    Raises:
        ImportError: torch has no operation of such a name.
    """
    for name in names.split():
        if not any(hasattr(namespace, name) for namespace in _NAMESPACES):
            failure = "automatic casts miss an operation"
            raise TORCH.missing(f"torch:{name}", failure)
    return frozenset(names.split())


_OPERATORS = frozenset({"add", "div", "matmul", "mod", "mul", "pow", "sub", "truediv"})
# Operations that take float16 beside float32 neither forward nor backward.
_NOT_MIXED = _operations("""
addbmm addmm addmv addr allclose baddbmm bilinear binary_cross_entropy bmm
chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
conv_transpose3d convolution cross cross_entropy dot einsum embedding_bag
grid_sample grid_sampler gru gru_cell huber_loss index_add index_copy index_put
inner lerp linalg_multi_dot linear lstm lstm_cell masked_scatter matmul mm mv
nll_loss prelu rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell
scaled_dot_product_attention scatter scatter_add scatter_reduce tensordot vdot
""")
# Operations that take inputs of float16 beside weights of float32, but not the reverse.
NORMS = _operations("batch_norm group_norm instance_norm layer_norm")
# Operations that compute nothing: explicit conversions, and what asks or changes a
# tensor.
_KEPT = _operations("""
backward bfloat16 copy data_ptr detach dim double element_size float half
is_contiguous is_floating_point item ndimension nelement numel numpy register_hook
retain_grad size stride to tolist type type_as
""")


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
    """The options of a model for automatic casts."""

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


# Functions of torch that consist of operations with separate casts.
_EXPANDED = frozenset({functional.multi_head_attention_forward})


@contextmanager
def casting(execution: Execution, rules: CastRules) -> Iterator[None]:
    """Make the casts that the regions and modules of a forward pass ask for."""
    regions = _ModuleRegions(execution, rules)
    # All modules of the process: their attributes do not change, so that several
    # threads can run one module. A hook ignores the other threads.
    handles = (
        register_module_forward_pre_hook(regions.enter),
        register_module_forward_hook(regions.leave, always_call=True),
    )
    try:
        with _Casts(execution, rules):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _ModuleRegions:
    """Makes each call of a module a region, as its setting and its class say."""

    def __init__(self, execution: Execution, rules: CastRules) -> None:
        self._execution = execution
        self._rules = rules
        # The modules that run, and how many regions there were before each.
        self._entered: list[tuple[nn.Module, int]] = []

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """Begin the region of a module, and return its arguments."""
        if current() is not self._execution:
            return args
        regions = self._execution.regions
        self._entered.append((module, regions.depth))
        regions.enter(vars(module).get(SETTING), self._rules.of_module(module))
        if regions.casts and isinstance(module, nn.RNNBase):
            # It refuses others than its weights, before any operation.
            weight = next(module.parameters())
            return tuple(cast(arg, weight.dtype) for arg in args)
        return args

    def leave(self, module: nn.Module, args: Any, result: Any) -> None:
        """End the region of a module, also of one that has raised."""
        if current() is not self._execution:
            return
        if self._entered and self._entered[-1][0] is module:
            self._execution.regions.leave(self._entered.pop()[1])


class _Casts(TorchFunctionMode):
    """Casts the inputs of operations, above autograd: gradients flow back through."""

    def __init__(self, execution: Execution, rules: CastRules) -> None:
        super().__init__()
        self._regions = execution.regions
        self._rules = rules

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._regions.casts or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        operation = operation_of(getattr(func, "__name__", ""))
        rule = self._rules.of(operation, self._regions.current)
        if rule is None:
            if func not in _EXPANDED:
                return func(*args, **kwargs)
            with self:
                return _without_override(func)(*args, **kwargs)
        dtype = casts_to(rule, (*args, *kwargs.values()))
        if operation.in_place or _has_inplace(func, args, kwargs):
            # The others take the type of the first, which is changed.
            dtype = getattr(args[0] if args else None, "dtype", None)
        if dtype not in (torch.float16, torch.float32):
            return func(*args, **kwargs)
        # torch takes inputs of float16 beside weights of float32.
        casts_input = operation.name in NORMS and dtype is torch.float16
        cast_args = [
            arg if index and casts_input else cast(arg, dtype)
            for index, arg in enumerate(args)
        ]
        cast_kwargs = {
            name: value if name != "input" and casts_input else cast(value, dtype)
            for name, value in kwargs.items()
        }
        result = func(*cast_args, **cast_kwargs)
        if operation.name in ("batch_norm", "instance_norm"):
            originals = _statistics(func, args, kwargs)
            copies = _statistics(func, cast_args, cast_kwargs)
            for original, copied in zip(originals, copies, strict=True):
                if original is not copied:
                    original.copy_(copied)
        return result


def _has_inplace(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a function of torch is called with its argument `inplace`."""
    if not isinstance(func, FunctionType):
        return False
    names = func.__code__.co_varnames[: func.__code__.co_argcount]
    if "inplace" in names[: len(args)]:
        return bool(args[names.index("inplace")])
    return bool(kwargs.get("inplace"))


def _statistics(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the running statistics, which a normalisation changes in place."""
    # The second and third argument in torch.nn.functional.
    at = 1 if isinstance(func, FunctionType) else 3
    return [*args[at : at + 2], kwargs.get("running_mean"), kwargs.get("running_var")]


@cache
def _without_override(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch as it runs where no mode overrides it.

    Functions that it calls can still be overridden.
    """
    assert isinstance(func, FunctionType)
    names = {**func.__globals__, "has_torch_function": lambda _: False}
    copied = FunctionType(
        func.__code__, names, func.__name__, func.__defaults__, func.__closure__
    )
    copied.__kwdefaults__ = func.__kwdefaults__
    return copied
