import subprocess
import sys

import pytest
from jobs import environments

import popart
import popdist.popart
from popdist.errors import DeviceError


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be instance 1 of 3, with replicas 2 to 4 of 6 that have 2 IPUs each."""
    told = environments((2, 3, 1))[1]
    told |= {"POPDIST_NUM_IPUS_PER_REPLICA": "2", "POPDIST_OFFLINE_MODE": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)


def settings(options: popart.SessionOptions) -> tuple[object, ...]:
    return (
        options.enableReplicatedGraphs,
        options.replicatedGraphCount,
        options.enableDistributedReplicatedGraphs,
        options.globalReplicaOffset,
        options.globalReplicationFactor,
    )


def test_no_device_is_returned_where_no_option_has_asked_for_ipus(
    instance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPDIST_OFFLINE_BECAUSE_OF", "-n")

    with pytest.raises(DeviceError, match=r"^This job runs without IPUs: "):
        popdist.popart.getDevice()


def test_options_are_those_of_the_instance(instance: None) -> None:
    options = popart.SessionOptions()

    popdist.popart.configureSessionOptions(options)

    assert settings(options) == (True, 3, True, 2, 6)


def test_one_local_replica_is_no_replicated_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environments((1, 1))[1].items():
        monkeypatch.setenv(name, value)
    options = popart.SessionOptions()
    options.enableReplicatedGraphs = True

    popdist.popart.configureSessionOptions(options)

    assert settings(options) == (False, 1, True, 1, 2)


def test_options_without_poprun_are_of_one_instance() -> None:
    options = popart.SessionOptions()

    popdist.popart.configureSessionOptions(options)

    assert settings(options) == (False, 1, False, 0, 1)


def test_what_are_no_options_is_refused() -> None:
    with pytest.raises(TypeError, match=r"got 3, but needs a popart.SessionOptions."):
        popdist.popart.configureSessionOptions(3)  # type: ignore[arg-type]


def test_a_device_has_the_ipus_of_all_local_replicas(instance: None) -> None:
    device = popdist.popart.getDevice()

    # In offline mode, none that poprun would have to attach.
    assert (device.type, device.numIpus) == (popart.DeviceType.IpuModel, 6)
    assert popdist.popart.getDevice(ipusPerReplica=2).numIpus == 6


def test_a_device_is_that_of_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environments((2, 2))[1].items():
        monkeypatch.setenv(name, value)
    demand = popart.DeviceConnectionType.OnDemand

    device = popdist.popart.getDevice(connectionType=demand)

    assert device.id == popdist.getDeviceId()
    assert (device.numIpus, device.isAttached) == (2, False)
    # As programs do that take it by its number.
    same = popart.DeviceManager().acquireDeviceById(popdist.getDeviceId(1))
    assert (same.id, same.numIpus) == (device.id, 2)


def test_other_ipus_per_replica_than_those_of_the_job_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environments((2, 2))[1].items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ValueError, match=r"was asked for 4 IPUs per replica, but this"):
        popdist.popart.getDevice(4)


def test_other_ipus_per_replica_are_refused_in_offline_mode_too(instance: None) -> None:
    with pytest.raises(ValueError, match=r"was asked for 4 IPUs per replica, but this"):
        popdist.popart.getDevice(4)


@pytest.mark.parametrize("value", ["Always", None, 0])
def test_a_connection_type_of_no_enumeration_is_refused(
    instance: None, value: object
) -> None:
    with pytest.raises(
        TypeError,
        match=rf"^getDevice got connectionType={value!r}, but needs a value of popart",
    ):
        popdist.popart.getDevice(connectionType=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["2", 2.0])
def test_a_number_of_ipus_that_is_no_int_is_refused(
    instance: None, value: object
) -> None:
    with pytest.raises(
        TypeError, match=rf"^getDeviceId got {value!r} IPUs per replica, but needs an i"
    ):
        popdist.popart.getDevice(value)  # type: ignore[arg-type]


MISSING = """
import sys
import popdist.sdk
popdist.sdk.install()
sys.modules["onnx"] = None
"""


def failure(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


def test_without_onnx_the_extra_is_named() -> None:
    assert failure(MISSING + "import popart\npopart.Builder()") == (
        "ModuleNotFoundError: popdist's stand-in for popart needs onnx for "
        "popart.Builder, and it is not installed. Install it from poprun's source "
        "folder: pip install '.[popart]'"
    )
    assert failure(MISSING + "import popdist.popart").endswith("install '.[popart]'")


def test_without_onnx_there_are_the_enumerations_that_poptorch_takes() -> None:
    code = MISSING + "import popart\nprint(int(popart.RecomputationType.Pipeline))"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout == "3\n"


def test_without_a_popart_the_ways_to_one_are_named() -> None:
    assert failure("import popdist.popart") == (
        "ModuleNotFoundError: popdist.popart needs popart, which is not installed. "
        "Its stand-in can be imported under poprun. Elsewhere, `python -m popdist.sdk "
        "enable` makes it importable in this environment, and `python -m popdist.sdk "
        "PROGRAM` for one program."
    )


def test_popxl_is_refused() -> None:
    with pytest.raises(ImportError, match=r"popxl is not available: popdist emulates"):
        import popxl  # noqa: F401
