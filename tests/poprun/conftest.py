from collections.abc import Iterator

import pytest
from job_clients import close_opened


@pytest.fixture(autouse=True)
def closed_clients() -> Iterator[None]:
    """Close the sockets of jobs without processes, and of their clients."""
    yield
    close_opened()
