"""Beds of several hosts on this machine, for the tests that need more than one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from beds import guide
from beds.bed import Bed
from beds.rights import need_beds
from conftest import Poprun

from tests.terminals import Start, Terminal, kill


@pytest.fixture
def make_bed() -> Iterator[Callable[..., Bed]]:
    """Make beds of the test's own, with the arguments of Bed."""
    need_beds()

    def make(**options: Any) -> Bed:
        need_beds(slurm="slurm_cpus" in options)
        return beds.enter_context(Bed(**options))

    with ExitStack() as beds:
        yield make


@pytest.fixture(scope="session")
def common_bed() -> Iterator[Bed]:
    need_beds()
    with Bed(hosts=3, shared_home=True) as bed:
        yield bed


@pytest.fixture
def bed(common_bed: Bed) -> Iterator[Bed]:
    """Three hosts that share HOME, and the proof that the test left nothing there."""
    with nothing_is_left(common_bed):
        yield common_bed


@pytest.fixture(scope="module")
def own_homes() -> Iterator[Bed]:
    """Three hosts with a HOME each, for tests that undo what they do."""
    need_beds()
    sshd = [
        *("Port 22", "Port 2222"),
        "AuthorizedKeysFile .ssh/authorized_keys /etc/keys_%u",
    ]
    with Bed(hosts=3, ipv6=True, sshd=sshd) as bed:
        yield bed


@pytest.fixture(scope="session")
def common_slurm_bed() -> Iterator[Bed]:
    need_beds(slurm=True)
    with Bed(hosts=2, shared_home=True, slurm_cpus=4) as bed:
        yield bed


@pytest.fixture
def slurm_bed(common_slurm_bed: Bed) -> Iterator[Bed]:
    """Two nodes of a Slurm with 4 CPUs each, and HOME shared; nothing may be left."""
    with nothing_is_left(common_slurm_bed):
        yield common_slurm_bed


@pytest.fixture(scope="session")
def common_guide_bed() -> Iterator[Bed]:
    need_beds()
    with guide.guide_bed() as bed:
        yield bed


@pytest.fixture
def guide_bed(common_guide_bed: Bed) -> Iterator[Bed]:
    """The guide's machines with their V-IPU server; nothing may be left on them."""
    with nothing_is_left(common_guide_bed):
        yield common_guide_bed


@contextmanager
def nothing_is_left(bed: Bed) -> Iterator[None]:
    yield
    try:
        bed.assert_nothing_is_left()
    finally:
        bed.clean()


@pytest.fixture
def on_terminal(poprun: Poprun) -> Iterator[Start]:
    """Start commands on terminals of their own."""
    started: list[Terminal] = []

    def start(*words: str, **environ: str) -> Terminal:
        started.append(Terminal(poprun, *words, **environ))
        return started[-1]

    yield start
    for terminal in started:
        kill(terminal.process)
