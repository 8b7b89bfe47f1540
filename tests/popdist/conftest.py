"""What tests of popdist have in common: the transports that they run over."""

import pytest

from popdist import session
from popdist.engine.shm.transport import ShmTransport
from tests import jobs
from tests.popdist import other_transports
from tests.popdist.engine import members


@pytest.fixture(params=["shm", "unix"])
def each_transport(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a test over shared memory, and then over unix sockets."""
    if request.param == "unix":
        monkeypatch.setattr(session, "TRANSPORTS", [*session.TRANSPORTS])
        other_transports.register()
        monkeypatch.setattr(members, "MEET", other_transports.UnixTransport.meet)
        program = f"from {other_transports.__name__} import register; register()"
        monkeypatch.setenv(jobs.BEFORE_PROLOGUE, program)
    else:
        assert session.TRANSPORTS[0].load() == ShmTransport.meet
