"""What tests of popdist have in common: the transports that they run over."""

import pytest

from popdist import transports
from popdist.engine.shm.shm_transport import ShmTransport
from popdist.job import Place
from popdist.session import STATE
from tests import jobs
from tests.forked_tests import run_in_fork
from tests.popdist import other_transports
from tests.popdist.engine import members


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests of TensorFlow take minutes, as tracing does on a loaded machine."""
    for item in items:
        if "tensorflow" in item.nodeid and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """Run tests of TensorFlow in forks.

    A TensorFlow that has run an operation has threads and devices, which instances that
    another test forks from its process would miss, and so hang.
    """
    if "tensorflow" not in item.nodeid:
        return None
    run_in_fork(item, nextitem)
    return True


@pytest.fixture(params=["shm", "unix"])
def each_transport(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a test over shared memory, and then over unix sockets."""
    if request.param == "unix":
        meet = other_transports.UnixTransport.meet
        monkeypatch.setattr(transports, "meet_members_of", lambda *_: meet)
        monkeypatch.setattr(members, "MEET", meet)
        program = f"from {other_transports.__name__} import register; register()"
        monkeypatch.setenv(jobs.BEFORE_PROLOGUE, program)
    else:
        meet = transports.meet_members_of(Place(), STATE.job_hosts)
        assert meet == ShmTransport.meet
