import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.environment import (
    JOB_VARIABLES,
    MEETING_VARIABLES,
    NUM_TOTAL_REPLICAS,
    TOPOLOGY_VARIABLES,
    Instance,
    is_set,
)
from popdist.errors import MissingVariableError, UnreadableVariableError

# The third of four instances with two replicas of four IPUs.
INSTANCE = Instance(
    num_total_replicas=8,
    num_ipus_per_replica=4,
    num_local_replicas=2,
    uniform=1,
    replica_index_offset=4,
    local_instance_index=2,
)
ENVIRON = {
    "POPDIST_NUM_TOTAL_REPLICAS": "8",
    "POPDIST_NUM_IPUS_PER_REPLICA": "4",
    "POPDIST_NUM_LOCAL_REPLICAS": "2",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
    "POPDIST_REPLICA_INDEX_OFFSET": "4",
    "POPDIST_LOCAL_INSTANCE_INDEX": "2",
}


def test_an_instance_is_encoded_in_the_order_in_which_poprun_gives_it() -> None:
    assert list(INSTANCE.encode().items()) == list(ENVIRON.items())
    assert tuple(ENVIRON) == TOPOLOGY_VARIABLES


def test_an_instance_is_decoded_from_among_other_variables() -> None:
    assert Instance.decode({"HOME": "/", **ENVIRON, "POPDIST_TRACE": "1"}) == INSTANCE


@given(
    local=st.integers(1, 64),
    instances=st.integers(1, 64),
    index=st.integers(0, 63),
    ipus=st.integers(1, 16),
)
def test_popdist_decodes_the_instance_that_poprun_encodes(
    local: int, instances: int, index: int, ipus: int
) -> None:
    instance = Instance(
        num_total_replicas=local * instances,
        num_ipus_per_replica=ipus,
        num_local_replicas=local,
        replica_index_offset=local * (index % instances),
        local_instance_index=index % instances,
    )

    assert Instance.decode(instance.encode()) == instance


def test_an_instance_knows_its_place_in_the_job() -> None:
    assert INSTANCE.replicas == range(4, 6)
    assert INSTANCE.index == 2
    assert INSTANCE.num_instances == 4


def test_an_instance_that_is_told_nothing_is_alone() -> None:
    alone = Instance()

    assert alone.replicas == range(0, 1)
    assert alone.index == 0
    assert alone.num_instances == 1


def test_programs_ask_for_the_total_to_know_whether_poprun_started_them() -> None:
    assert is_set({NUM_TOTAL_REPLICAS: "8"})
    assert not is_set({"POPDIST_TRACE": "1"})


def test_no_variable_of_the_job_describes_the_topology() -> None:
    assert not set(JOB_VARIABLES) & set(TOPOLOGY_VARIABLES)


@pytest.mark.parametrize("variable", TOPOLOGY_VARIABLES)
def test_a_missing_variable_is_named(variable: str) -> None:
    told = {**ENVIRON, **dict.fromkeys(MEETING_VARIABLES, "1")}
    environ = {name: text for name, text in told.items() if name != variable}

    with pytest.raises(MissingVariableError) as refusal:
        Instance.decode(environ)

    assert refusal.value.variable == variable
    assert refusal.value.variables == (variable,)
    assert str(refusal.value) == (
        f"{variable} is not set, although other POPDIST_ variables are. "
        "poprun sets all of them or none: start the program with poprun, or "
        "unset them all to run without it."
    )


@pytest.mark.parametrize("variable", TOPOLOGY_VARIABLES)
@pytest.mark.parametrize(
    "text", ["abc", "-1", "", " 1", "1.0", "+1", "1_0", "0x1", "\u0661"]
)
def test_values_that_are_no_whole_numbers_are_refused(variable: str, text: str) -> None:
    with pytest.raises(UnreadableVariableError) as refusal:
        Instance.decode(ENVIRON | {variable: text})

    assert refusal.value.variable == variable
    assert str(refusal.value) == (
        f"{variable} is {text!r}, but must be a whole number. poprun sets it; "
        "unset it to run without poprun."
    )


@pytest.mark.parametrize(
    ("variable", "text", "rule"),
    [
        ("POPDIST_NUM_TOTAL_REPLICAS", "0", "1 or more"),
        ("POPDIST_NUM_IPUS_PER_REPLICA", "0", "1 or more"),
        (
            "POPDIST_NUM_LOCAL_REPLICAS",
            "0",
            "an equal share of the 8 replicas of POPDIST_NUM_TOTAL_REPLICAS",
        ),
        (
            "POPDIST_NUM_LOCAL_REPLICAS",
            "9",
            "an equal share of the 8 replicas of POPDIST_NUM_TOTAL_REPLICAS",
        ),
        ("POPDIST_UNIFORM_REPLICAS_PER_INSTANCE", "2", "0 or 1"),
        (
            "POPDIST_REPLICA_INDEX_OFFSET",
            "7",
            "at most 6 and the first of 2 local replicas",
        ),
        (
            "POPDIST_REPLICA_INDEX_OFFSET",
            "3",
            "at most 6 and the first of 2 local replicas",
        ),
        (
            "POPDIST_NUM_LOCAL_REPLICAS",
            "3",
            "an equal share of the 8 replicas of POPDIST_NUM_TOTAL_REPLICAS",
        ),
        ("POPDIST_LOCAL_INSTANCE_INDEX", "4", "less than 4"),
    ],
)
def test_impossible_values_are_refused(variable: str, text: str, rule: str) -> None:
    with pytest.raises(UnreadableVariableError) as refusal:
        Instance.decode(ENVIRON | {variable: text})

    assert str(refusal.value) == (
        f"{variable} is '{text}', but must be {rule}. poprun sets it; "
        "unset it to run without poprun."
    )
