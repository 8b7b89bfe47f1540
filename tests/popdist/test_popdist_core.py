import subprocess
import sys
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

import popdist
from popdist import popdist_core
from popdist.environment import (
    MEETING_VARIABLES,
    NODE_DEVICE_ID,
    TOPOLOGY_VARIABLES,
    Instance,
)
from popdist.errors import (
    MissingVariableError,
    NotUniformError,
    UnreadableVariableError,
)

GETTERS = {
    "getNumTotalReplicas": 1,
    "getNumLocalReplicas": 1,
    "getReplicaIndexOffset": 0,
    "getNumIpusPerReplica": 1,
    "getInstanceIndex": 0,
    "getNumInstances": 1,
    "getLocalInstanceIndex": 0,
    "isUniformReplicasPerInstance": True,
    "getDeviceId": 0,
}


def job(instances: int, replicas: int, ipus: int = 1) -> list[Instance]:
    share = replicas // instances
    return [
        Instance(
            num_total_replicas=replicas,
            num_ipus_per_replica=ipus,
            num_local_replicas=share,
            replica_index_offset=index * share,
            local_instance_index=index,
        )
        for index in range(instances)
    ]


def become(patch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name in (*TOPOLOGY_VARIABLES, NODE_DEVICE_ID):
        patch.delenv(name, raising=False)
    for name, value in variables.items():
        patch.setenv(name, value)


def device_ids(instances: list[Instance], **variables: str) -> list[int]:
    ids = []
    for instance in instances:
        with pytest.MonkeyPatch.context() as patch:
            become(patch, instance.encode() | variables)
            ids.append(popdist.getDeviceId())
    return ids


@pytest.mark.parametrize(
    "name", [*GETTERS, "isPopdistEnvSet", "checkNumIpusPerReplica"]
)
def test_the_package_and_its_core_have_the_same_functions(name: str) -> None:
    assert getattr(popdist, name) is getattr(popdist_core, name)
    assert name in popdist.__all__
    assert name in popdist_core.__all__


@pytest.mark.parametrize(("name", "value"), GETTERS.items())
def test_without_poprun_a_process_is_the_only_instance(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, {"POPDIST_TRACE": "1"})

    assert getattr(popdist, name)() == value
    assert not popdist.isPopdistEnvSet()


def test_without_poprun_a_replica_has_one_ipu(monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, {})

    assert popdist.checkNumIpusPerReplica(1) is True
    assert popdist.checkNumIpusPerReplica(2) is False
    assert popdist.getDeviceId(4) == 0


def test_an_instance_is_told_what_poprun_gave_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance = Instance(
        num_total_replicas=16,
        num_ipus_per_replica=4,
        num_local_replicas=2,
        replica_index_offset=10,
        local_instance_index=1,
    )
    become(monkeypatch, instance.encode())

    assert popdist.isPopdistEnvSet() is True
    assert popdist.getNumTotalReplicas() == 16
    assert popdist.getNumLocalReplicas() == 2
    assert popdist.getReplicaIndexOffset() == 10
    assert popdist.getNumIpusPerReplica() == 4
    assert popdist.getInstanceIndex() == 5
    assert popdist.getNumInstances() == 8
    assert popdist.getLocalInstanceIndex() == 1
    assert popdist.isUniformReplicasPerInstance() is True
    assert popdist.checkNumIpusPerReplica(4) is True
    assert popdist.checkNumIpusPerReplica(1) is False


def test_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, {})
    assert popdist.getNumTotalReplicas() == 1

    become(monkeypatch, job(2, 6)[1].encode())
    assert popdist.getNumTotalReplicas() == 6


def test_instances_that_are_not_alike_have_no_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unlike = Instance(
        num_total_replicas=5, num_local_replicas=2, replica_index_offset=3, uniform=0
    )
    become(monkeypatch, unlike.encode())

    for name in ("getInstanceIndex", "getNumInstances"):
        with pytest.raises(NotUniformError) as refusal:
            getattr(popdist, name)()
        assert str(refusal.value) == (
            f"{name} has no result, because the instances of this job own "
            "different numbers of replicas. Use getReplicaIndexOffset and "
            "getNumLocalReplicas instead."
        )
    assert popdist.isUniformReplicasPerInstance() is False
    assert popdist.getReplicaIndexOffset() == 3


MEETING = dict.fromkeys(MEETING_VARIABLES, "1")


@pytest.mark.parametrize(
    ("variable", "getter", "default"),
    [
        ("POPDIST_NUM_TOTAL_REPLICAS", "getNumTotalReplicas", 1),
        ("POPDIST_NUM_LOCAL_REPLICAS", "getNumLocalReplicas", 1),
        ("POPDIST_NUM_IPUS_PER_REPLICA", "getNumIpusPerReplica", 1),
        ("POPDIST_REPLICA_INDEX_OFFSET", "getReplicaIndexOffset", 0),
        ("POPDIST_LOCAL_INSTANCE_INDEX", "getLocalInstanceIndex", 0),
        (
            "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE",
            "isUniformReplicasPerInstance",
            True,
        ),
    ],
)
def test_a_getter_reads_its_own_variable_and_has_the_guides_default(
    variable: str, getter: str, default: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = job(2, 4)[1].encode()
    become(monkeypatch, {variable: told[variable]})
    alone = getattr(popdist, getter)()
    become(monkeypatch, told)
    together = getattr(popdist, getter)()
    monkeypatch.delenv(variable)
    without = getattr(popdist, getter)()

    assert alone == together == int(told[variable])
    assert without == default


def test_a_total_that_is_set_by_hand_is_all_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    become(monkeypatch, {"POPDIST_NUM_TOTAL_REPLICAS": "4"})

    assert popdist.getNumTotalReplicas() == 4
    assert popdist.getNumInstances() == 4
    assert popdist.getInstanceIndex() == 0
    assert popdist.getNumLocalReplicas() == 1
    assert popdist.checkNumIpusPerReplica(1) is True
    assert popdist.checkNumIpusPerReplica(2) is False


def test_the_five_variables_of_the_guide_describe_a_job_of_one_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    become(
        monkeypatch,
        {
            "POPDIST_NUM_TOTAL_REPLICAS": "2",
            "POPDIST_NUM_LOCAL_REPLICAS": "2",
            "POPDIST_NUM_IPUS_PER_REPLICA": "1",
            "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
            "POPDIST_REPLICA_INDEX_OFFSET": "0",
        },
    )

    assert popdist.getNumTotalReplicas() == 2
    assert popdist.getNumLocalReplicas() == 2
    assert popdist.getNumInstances() == 1
    assert popdist.getInstanceIndex() == 0
    assert popdist.getLocalInstanceIndex() == 0
    with pytest.raises(
        MissingVariableError, match=r"^POPDIST_LOCAL_INSTANCE_INDEX is not set"
    ):
        popdist.getDeviceId()


@pytest.mark.parametrize("missing", TOPOLOGY_VARIABLES)
def test_a_device_needs_the_whole_contract(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, {**job(2, 4)[1].encode(), **MEETING})
    monkeypatch.delenv(missing)

    with pytest.raises(MissingVariableError, match=f"^{missing} is not set"):
        popdist.getDeviceId()


@pytest.mark.parametrize(
    ("variable", "text", "getters"),
    [
        (
            "POPDIST_NUM_TOTAL_REPLICAS",
            "abc",
            ["getNumTotalReplicas", "getNumInstances", "getDeviceId"],
        ),
        (
            "POPDIST_NUM_LOCAL_REPLICAS",
            "0",
            ["getNumLocalReplicas", "getInstanceIndex", "getNumInstances"],
        ),
        (
            "POPDIST_LOCAL_INSTANCE_INDEX",
            "-1",
            ["getLocalInstanceIndex", "getDeviceId"],
        ),
        ("POPDIST_REPLICA_INDEX_OFFSET", "4", ["getDeviceId"]),
    ],
)
def test_a_variable_that_makes_no_sense_is_named_where_it_is_read(
    variable: str, text: str, getters: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, job(2, 4)[1].encode() | {variable: text})

    assert popdist.isPopdistEnvSet() is True
    for name in getters:
        with pytest.raises(UnreadableVariableError, match=f"^{variable} is '{text}'"):
            getattr(popdist, name)()
    for name in GETTERS.keys() - {*getters, "getDeviceId"}:
        getattr(popdist, name)()


@pytest.mark.parametrize(
    ("instances", "replicas", "ipus", "ids"),
    [
        pytest.param(4, 4, 1, [0, 1, 2, 3], id="single-ipus"),
        pytest.param(1, 4, 1, [6], id="the-whole-partition"),
        pytest.param(2, 4, 1, [4, 5], id="pairs"),
        pytest.param(4, 8, 2, [24, 25, 26, 27], id="fours-of-sixteen"),
        pytest.param(1, 1, 1, [0], id="one-ipu"),
        pytest.param(3, 3, 1, [0, 1, 2], id="three-replicas"),
        pytest.param(3, 6, 2, [0, 4, 8], id="twelve-ipus"),
    ],
)
def test_devices_are_those_of_a_partition_as_large_as_the_job(
    instances: int, replicas: int, ipus: int, ids: list[int]
) -> None:
    assert device_ids(job(instances, replicas, ipus)) == ids


def test_instances_that_are_not_alike_have_devices_all_the_same() -> None:
    unlike = [
        Instance(
            num_total_replicas=8,
            num_local_replicas=local,
            replica_index_offset=offset,
            uniform=0,
        )
        for offset, local in ((0, 1), (1, 3), (4, 4))
    ]

    assert device_ids(unlike) == [0, 1, 4]


@pytest.mark.parametrize(
    ("parent", "shape", "ids"),
    [
        pytest.param("64", (2, 2, 1), [0, 1], id="first-pair-of-64"),
        pytest.param("95", (2, 2, 1), [62, 63], id="last-pair-of-64"),
        pytest.param("126", (2, 64, 1), [124, 125], id="all-of-64"),
        pytest.param("97", (2, 4, 1), [66, 67], id="second-four-of-64"),
        pytest.param("6", (1, 4, 1), [6], id="one-instance"),
        pytest.param("9", (1, 1, 1), [9], id="one-ipu"),
    ],
)
def test_with_a_parent_device_each_instance_has_its_part_of_it(
    parent: str, shape: tuple[int, int, int], ids: list[int]
) -> None:
    assert device_ids(job(*shape), POPDIST_NODE_DEVICE_ID=parent) == ids


@given(
    instances=st.sampled_from([1, 2, 4, 8]),
    local=st.sampled_from([1, 2, 4]),
    ipus=st.sampled_from([1, 2, 4]),
    spare=st.sampled_from([1, 2, 8]),
    position=st.integers(0, 7),
)
def test_the_parts_of_a_parent_device_lie_in_the_partition_and_are_distinct(
    instances: int, local: int, ipus: int, spare: int, position: int
) -> None:
    size = instances * local * ipus
    partition = size * spare
    # Numbered by counting: all single IPUs, then all pairs, and so on.
    devices = [
        range(first, first + width)
        for width in (2**k for k in range(partition.bit_length()))
        for first in range(0, partition, width)
    ]
    whole = range(size * (position % spare), size * (position % spare + 1))

    ids = device_ids(
        job(instances, instances * local, ipus),
        POPDIST_NODE_DEVICE_ID=str(devices.index(whole)),
    )

    share = local * ipus
    assert [devices[id] for id in ids] == [
        whole[k * share : (k + 1) * share] for k in range(instances)
    ]


@pytest.mark.parametrize(
    ("parent", "shape", "size"),
    [
        ("abc", (2, 2, 1), 2),
        ("-1", (2, 2, 1), 2),
        ("1", (2, 2, 1), 2),
        ("3", (2, 8, 1), 8),
        ("9", (3, 3, 1), 3),
    ],
)
def test_a_parent_device_that_cannot_be_is_refused(
    parent: str, shape: tuple[int, int, int], size: int
) -> None:
    with pytest.raises(UnreadableVariableError) as refusal:
        device_ids(job(*shape), POPDIST_NODE_DEVICE_ID=parent)

    assert str(refusal.value) == (
        f"POPDIST_NODE_DEVICE_ID is '{parent}', but must be the id of a device with "
        f"{size} IPUs. poprun sets it; unset it to run without poprun."
    )


def test_both_names_of_the_argument_mean_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    become(monkeypatch, job(2, 2, 2)[1].encode())

    assert popdist.getDeviceId(2) == 5
    assert popdist.getDeviceId(ipus_per_replica=2) == 5
    assert popdist.getDeviceId(ipusPerReplica=2) == 5
    assert popdist.getDeviceId(2, ipusPerReplica=2) == 5
    assert popdist.getDeviceId(ipusPerReplica=0) == 5


def test_two_names_with_two_values_are_refused() -> None:
    with pytest.raises(TypeError) as refusal:
        popdist.getDeviceId(ipus_per_replica=1, ipusPerReplica=2)

    assert str(refusal.value) == (
        "getDeviceId got ipus_per_replica=1 and ipusPerReplica=2, "
        "which are two names of one argument. Give one of them."
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            4,
            "getDeviceId was asked for 4 IPUs per replica, but this job has 2. "
            "Start it with poprun --ipus-per-replica 4, or ask for 2.",
        ),
        (-1, "getDeviceId got -1 IPUs per replica, but there must be 1 or more."),
    ],
)
def test_another_number_of_ipus_than_the_jobs_is_refused(
    asked: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, job(2, 2, 2)[1].encode())

    with pytest.raises(ValueError, match="IPUs per replica") as refusal:
        popdist.getDeviceId(asked)

    assert str(refusal.value) == message


def test_importing_popdist_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import popdist; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(new - sys.stdlib_module_names))"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert result.stdout == "popdist\n"
