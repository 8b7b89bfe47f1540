"""Decorators of tests that ask for IPUs: they run, as the CPU plays their part."""

from collections.abc import Callable
from typing import Any, TypeVar

# Any: tests have arguments of many types.
Test = TypeVar("Test", bound=Callable[..., Any])

__all__ = [
    "skip_on_hw",
    "skip_with_asan",
    "test_may_use_ipus_or_model",
    "test_uses_ipus",
]


def _keep(*_: object, **__: object) -> Callable[[Test], Test]:
    def decorate(test: Test) -> Test:
        return test

    return decorate


def test_uses_ipus(
    num_ipus: int, allow_ipu_model: bool = True
) -> Callable[[Test], Test]:
    """Decorate a test that needs a number of IPUs."""
    return _keep(num_ipus, allow_ipu_model)


def test_may_use_ipus_or_model(
    num_ipus: int, func: Test | None = None
) -> Callable[[Test], Test]:
    """Decorate a test that runs on IPUs, or on a model of them."""
    return _keep(num_ipus, func)


def skip_on_hw(test: Test) -> Test:
    """Decorate a test that runs on a model only."""
    return test


def skip_with_asan(reason: str) -> Callable[[Test], Test]:
    """Decorate a test that does not run under AddressSanitizer."""
    return _keep(reason)
