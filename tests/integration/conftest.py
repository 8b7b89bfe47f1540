"""Beds of several hosts on this machine, for the tests that need more than one."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from beds.bed import Bed
from beds.rights import reason_against_beds


def need_beds(slurm: bool = False) -> None:
    """Skip the test where no bed can be made; in CI it fails instead."""
    reason = reason_against_beds(slurm)
    if reason and os.environ.get("CI"):
        pytest.fail(f"CI must be able to make beds: {reason}")
    if reason:
        pytest.skip(reason)


@pytest.fixture
def make_bed() -> Iterator[Callable[..., Bed]]:
    """Make beds of the test's own, with the arguments of Bed."""
    need_beds()
    with ExitStack() as beds:
        yield lambda **options: beds.enter_context(Bed(**options))


@pytest.fixture(scope="session")
def common_bed() -> Iterator[Bed]:
    need_beds()
    with Bed(hosts=3, shared_home=True) as bed:
        yield bed


@pytest.fixture
def bed(common_bed: Bed) -> Iterator[Bed]:
    """Three hosts that share HOME, and the proof that the test left nothing there."""
    yield common_bed
    try:
        common_bed.assert_nothing_is_left()
    finally:
        common_bed.clean()
