from poprun.plan.outer_job import without_outer_job

OUTER = {
    "POPDIST_NUM_TOTAL_REPLICAS": "64",
    "POPDIST_NUM_IPUS_PER_REPLICA": "4",
    "POPDIST_NUM_LOCAL_REPLICAS": "8",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
    "POPDIST_REPLICA_INDEX_OFFSET": "8",
    "POPDIST_LOCAL_INSTANCE_INDEX": "1",
    "POPDIST_CONTRACT_VERSION": "0",
    "POPDIST_JOB_ID": "outer",
    "POPDIST_CONTROL": "@poprun-outer",
    "POPDIST_OFFLINE_MODE": "0",
    "POPDIST_ARENA": "outer-0",
    "POPDIST_RESTART_COUNT": "3",
}
# A user may set these too.
EITHER = {
    "POPDIST_NODE_DEVICE_ID": "64",
    "POPDIST_EXECUTABLE_CACHE_PATH": "/cache",
    "MPI4PY_LIBMPI": "/mpi/libmpi.so",
    "OMP_NUM_THREADS": "2",
}
USERS = {"PATH": "/usr/bin", "POPDIST_TIMEOUT": "30", "POPDIST_LOG_LEVEL": "debug"}


def test_nothing_that_an_outer_poprun_said_is_taken_for_the_users_word() -> None:
    assert without_outer_job({**USERS, **EITHER, **OUTER}) == USERS


def test_what_a_user_has_set_is_kept_outside_of_any_job() -> None:
    assert without_outer_job({**USERS, **EITHER}) == {**USERS, **EITHER}


def test_half_a_topology_that_somebody_left_is_not_kept() -> None:
    assert without_outer_job({"POPDIST_REPLICA_INDEX_OFFSET": "8"}) == {}
