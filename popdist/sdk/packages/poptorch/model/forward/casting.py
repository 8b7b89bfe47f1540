"""Makes the automatic casts of a forward pass, in the regions that ask for them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from ...autocasting import SETTING
from ...execution import Execution, current
from ...regions import Rule
from .cast_rules import NORMS, CastRules, cast, casts_to, operation_of

# Functions of torch that are made of operations which get casts of their own.
_EXPANDED = frozenset({functional.multi_head_attention_forward})


@contextmanager
def casting(execution: Execution, rules: CastRules) -> Iterator[None]:
    """Make the casts that the regions and modules of a forward pass ask for."""
    regions = _ModuleRegions(execution, rules)
    # All modules of the process: no attribute of theirs changes, so that several
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

    # Any: whatever the module's forward takes and returns.
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
    ) -> Any:  # Any: torch calls this with and for whatever its functions take.
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
        if operation.in_place or _has_inplace(func, args, kwargs):
            return _run_in_place(func, args, kwargs)
        if operation.name in NORMS:
            return _run_norm(func, rule, args, kwargs)
        dtype = casts_to(rule, (*args, *kwargs.values()))
        if dtype is None:
            return func(*args, **kwargs)
        cast_kwargs = {name: cast(value, dtype) for name, value in kwargs.items()}
        return func(*(cast(arg, dtype) for arg in args), **cast_kwargs)


def _has_inplace(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a function of torch is called with its argument `inplace`."""
    if not isinstance(func, FunctionType):
        return False
    names = func.__code__.co_varnames[: func.__code__.co_argcount]
    if "inplace" in names[: len(args)]:
        return bool(args[names.index("inplace")])
    return bool(kwargs.get("inplace"))


# Any: whatever torch's functions take and return, here and below.
def _run_in_place(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Cast the other inputs to the type of the first, which is changed."""
    first, *others = args or (None,)
    if not isinstance(first, torch.Tensor) or first.dtype not in (
        torch.float16,
        torch.float32,
    ):
        return func(*args, **kwargs)
    dtype = first.dtype
    cast_kwargs = {name: cast(value, dtype) for name, value in kwargs.items()}
    return func(first, *(cast(arg, dtype) for arg in others), **cast_kwargs)


def _run_norm(
    func: Callable[..., Any], rule: Rule, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Run a normalisation, which changes running statistics in place.

    To float16 only its input is cast: torch takes it beside weights of float32.
    """
    dtype = casts_to(rule, (*args, *kwargs.values()))
    if dtype is None:
        return func(*args, **kwargs)
    if dtype is torch.float16:
        kwargs = {n: cast(v, dtype) if n == "input" else v for n, v in kwargs.items()}
        return func(*(cast(arg, dtype) for arg in args[:1]), *args[1:], **kwargs)
    wide = [cast(arg, dtype) for arg in args]
    wide_kwargs = {name: cast(value, dtype) for name, value in kwargs.items()}
    result = func(*wide, **wide_kwargs)
    originals = _statistics(func, args, kwargs)
    copies = _statistics(func, wide, wide_kwargs)
    for original, copied in zip(originals, copies, strict=True):
        if original is not copied:
            original.copy_(copied)
    return result


def _statistics(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the running statistics among the arguments of a normalisation."""
    if func.__name__ not in ("batch_norm", "instance_norm"):
        return []
    # The second and third argument in torch.nn.functional.
    at = 1 if isinstance(func, FunctionType) else 3
    return [*args[at : at + 2], kwargs.get("running_mean"), kwargs.get("running_var")]


@cache
def _without_override(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch as it runs where no mode overrides it.

    What it calls can be overridden as ever.
    """
    assert isinstance(func, FunctionType)
    names = {**func.__globals__, "has_torch_function": lambda _: False}
    copied = FunctionType(
        func.__code__, names, func.__name__, func.__defaults__, func.__closure__
    )
    copied.__kwdefaults__ = func.__kwdefaults__
    return copied
