"""The links over which tests of several hosts run."""

import pytest

from tests.conftest import mpirun_of
from tests.host_jobs import TCP


@pytest.fixture(params=["hydra", TCP])
def links(request: pytest.FixtureRequest) -> str:
    """Run a test over MPICH and over TCP: what host_jobs.run() starts a job with."""
    return TCP if request.param == TCP else mpirun_of(request.param)
