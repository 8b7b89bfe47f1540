"""Elastic jobs: instances go on when others end, and take in those that join.

poprun must have started the job with --mpirun local and --min-instances. Then instances
that live on when others die raise PeerLostError, and each of them calls reform(). It
returns when all have done so, and the process has its place among the members that are
there. run() and State do this for a training loop, and restore the state that the
members have committed.
"""

from popdist.elastic.reforming import generation, members_changed, reform, refusal
from popdist.elastic.repeating import run
from popdist.elastic.state import Kept, State
from popdist.errors import (
    ElasticError,
    LeftJobError,
    MembersChangedError,
    PeerLostError,
)

__all__ = [
    "ElasticError",
    "Kept",
    "LeftJobError",
    "MembersChangedError",
    "PeerLostError",
    "State",
    "generation",
    "members_changed",
    "reform",
    "refusal",
    "run",
]
