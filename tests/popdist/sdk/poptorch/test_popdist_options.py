import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import popdist.poptorch
import poptorch

# Instance 1 of 4, with 2 of 8 replicas of 2 IPUs each.
ENVIRON = {
    "POPDIST_NUM_TOTAL_REPLICAS": "8",
    "POPDIST_NUM_IPUS_PER_REPLICA": "2",
    "POPDIST_NUM_LOCAL_REPLICAS": "2",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
    "POPDIST_REPLICA_INDEX_OFFSET": "2",
    "POPDIST_LOCAL_INSTANCE_INDEX": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "POPDIST_ARENA": "arena",
}


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


def test_options_of_an_instance(instance: None) -> None:
    options = popdist.poptorch.Options()

    assert isinstance(options, poptorch.Options)
    assert options.replication_factor == 2
    assert options.Distributed.processId == 1
    assert options.Distributed.numProcesses == 4
    assert repr(options).startswith("Options(replication_factor=2, ")


def test_options_without_poprun_are_of_one_instance() -> None:
    options = popdist.poptorch.Options(ipus_per_replica=4)

    assert options.replication_factor == 1
    assert options.Distributed.processId == 0
    assert options.Distributed.numProcesses == 1


REFUSED: dict[str, Callable[[Any], Any]] = {
    "useIpuId": lambda o: o.useIpuId(0),
    "replicationFactor": lambda o: o.replicationFactor(2),
    "Distributed.disable": lambda o: o.Distributed.disable(),
    "Distributed.setEnvVarNames": lambda o: o.Distributed.setEnvVarNames("A", "B"),
    "Distributed.configureProcessId": lambda o: o.Distributed.configureProcessId(0, 1),
}


@pytest.mark.parametrize("method", REFUSED)
@pytest.mark.parametrize(
    "copied",
    [
        lambda o: o,
        copy.deepcopy,
        lambda o: o.clone(),
        lambda o: pickle.loads(pickle.dumps(o)),
    ],
    ids=["itself", "deepcopy", "clone", "pickled"],
)
def test_what_poprun_decides_is_not_set(
    method: str, copied: Callable[[Any], Any], instance: None
) -> None:
    options = copied(popdist.poptorch.Options())
    before = repr(options)

    with pytest.raises(RuntimeError) as refusal:
        REFUSED[method](options)

    assert str(refusal.value).startswith(
        f"Cannot call `{method}` with popdist.poptorch.Options"
    )
    assert repr(options) == before


def test_what_poprun_decides_is_refused_with_any_arguments(instance: None) -> None:
    distributed: Any = popdist.poptorch.Options().Distributed

    for call in (
        lambda: distributed.configureProcessId(1),
        lambda: distributed.configureProcessId(num_processes=2, process_id=1),
        lambda: distributed.setEnvVarNames("SIZE"),
    ):
        with pytest.raises(RuntimeError, match=r"Cannot call `Distributed\."):
            call()


def test_the_device_is_asked_for_when_options_are_used(
    instance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []

    def get_device_id(ipus_per_replica: int | None) -> int:
        asked.append(ipus_per_replica)
        return 24

    monkeypatch.setattr(popdist, "getDeviceId", get_device_id)
    options = popdist.poptorch.Options(2).outputMode(poptorch.OutputMode.All)
    options.deviceIterations(3)._freeze()
    assert asked == []

    for _ in range(2):
        merged = options.toDict()
        assert merged["ipu_id"] == 24
        assert merged["device_iterations"] == 3

    assert asked == [2, 2]
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        options.deviceIterations(2)


def test_a_model_asks_for_the_device_when_it_is_compiled(
    instance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []
    monkeypatch.setattr(popdist, "getDeviceId", asked.append)
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2), popdist.poptorch.Options(2))
    assert asked == []

    model.compile(torch.ones(2, 2))

    assert asked == [2]


def test_a_model_for_other_ipus_than_the_job_has_is_refused(instance: None) -> None:
    options = popdist.poptorch.Options(ipus_per_replica=4)
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2), options)

    with pytest.raises(ValueError, match="IPU"):
        model.compile(torch.ones(2, 2))


def test_what_never_connects_asks_for_no_device(
    instance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popdist, "getDeviceId", None)
    options = popdist.poptorch.Options().useOfflineIpuTarget()

    assert "ipu_id" not in options.outputMode(poptorch.OutputMode.All).toDict()


def test_offline_mode_asks_for_no_device(
    instance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPDIST_OFFLINE_MODE", "1")
    monkeypatch.setattr(popdist, "getDeviceId", None)
    options = popdist.poptorch.Options().outputMode(poptorch.OutputMode.All)

    assert "ipu_id" not in options.toDict()
    # The stand-in trains in offline mode too.
    assert options.connection_type == poptorch.ConnectionType.Always


@pytest.mark.parametrize(("own", "used"), [("", "/poprun"), ("/own", "/own")])
def test_the_cache_of_the_job_is_used_unless_there_is_one(
    own: str, used: str, instance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPDIST_EXECUTABLE_CACHE_PATH", "/poprun")
    monkeypatch.setenv("POPTORCH_CACHE_DIR", own)

    assert popdist.poptorch.Options()._Popart.options["cachePath"] == used


# What popdist.poptorch uses of Graphcore's package, by that package's documents.
INSTALLED = """
import copy
import enum
from . import options
class ConnectionType(enum.IntEnum):
    Always, OnDemand, Never = range(3)
class Options:
    connection_type = ConnectionType.Always
    def __init__(self):
        self.calls, self._distributed = [], options._DistributedOptions()
    @property
    def Distributed(self): return self._distributed
    def replicationFactor(self, n): self.replication_factor = n; return self
    def useIpuId(self, n): self.ipu_id = n; return self
    def useOfflineIpuTarget(self, ipu_version=2): self.calls.append("offline")
    def enableExecutableCaching(self, path): self.calls.append(path); return self
    def toDict(self): return {"replication_factor": self.replication_factor}
    def clone(self): return copy.deepcopy(self)
"""
DISTRIBUTED = """
class _DistributedOptions:
    processId, numProcesses = 0, 1
    def disable(self): pass
    def setEnvVarNames(self, size, rank): pass
    def configureProcessId(self, process_id, num_processes):
        self.processId, self.numProcesses = process_id, num_processes
        return self
"""
PROGRAM = """
import sys
import popdist.poptorch
options = popdist.poptorch.Options(ipus_per_replica=2)
print(sys.modules["poptorch"].__file__)
print(options.replication_factor, options.calls, options.toDict())
for copied in (options, options.clone()):
    print(copied.Distributed.processId, copied.Distributed.numProcesses)
    for call in (
        lambda: copied.replicationFactor(1),
        lambda: copied.Distributed.configureProcessId(0, 1),
    ):
        try:
            call()
        except RuntimeError as error:
            print(str(error).partition(":")[0])
"""


@pytest.mark.parametrize(
    ("offline", "calls", "device"),
    [("0", "['/cache']", ", 'ipu_id': "), ("1", "['/cache', 'offline']", "}")],
)
def test_an_installed_poptorch_is_used(
    offline: str, calls: str, device: str, tmp_path: Path
) -> None:
    package = tmp_path / "site" / "poptorch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(INSTALLED)
    (package / "options.py").write_text(DISTRIBUTED)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **ENVIRON,
            "PYTHONPATH": str(package.parent),
            "POPDIST_EXECUTABLE_CACHE_PATH": "/cache",
            "POPDIST_OFFLINE_MODE": offline,
        },
        capture_output=True,
        text=True,
    )

    assert done.stderr == ""
    path, options, *others = done.stdout.splitlines()
    assert path == str(package / "__init__.py")
    assert options.startswith(f"2 {calls} {{'replication_factor': 2{device}")
    assert others == 2 * [
        "1 4",
        "Cannot call `replicationFactor` with popdist.poptorch.Options",
        "Cannot call `Distributed.configureProcessId` with popdist.poptorch.Options",
    ]


def test_without_any_poptorch_the_error_says_where_the_stand_in_is(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import popdist.poptorch"],
        cwd=tmp_path,
        env={"POPDIST_SDK": "no"},
        capture_output=True,
        text=True,
    )

    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: popdist.poptorch needs poptorch, which is not "
        "installed. Its stand-in can be imported under poprun. Elsewhere, `python -m "
        "popdist.sdk enable` makes it importable in this environment, and `python -m "
        "popdist.sdk PROGRAM` for one program."
    )
