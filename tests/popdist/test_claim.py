"""The claim of one process to be an instance."""

import os

from popdist.claim import Claim


def test_a_claim_that_is_released_can_be_made_again() -> None:
    shared_name = f"test claim {os.getpid()}"
    for _ in range(2):
        claim = Claim()
        claim.acquire(shared_name, 0)
        claim.release()


def test_a_file_that_has_the_number_of_a_closed_claim_stays_open() -> None:
    before = os.open("/dev/null", os.O_RDONLY)
    os.close(before)
    claim = Claim()
    claim.acquire(f"test claim {os.getpid()}", 1)
    os.close(before)
    own = os.open("/dev/null", os.O_RDONLY)

    claim.release()

    assert own == before
    os.fstat(own)
    os.close(own)
