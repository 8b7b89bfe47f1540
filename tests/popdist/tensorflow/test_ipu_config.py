"""What set_ipu_config() sets in configurations, and which ones it refuses."""

from types import SimpleNamespace
from typing import Any

import pytest

from popdist.tensorflow import set_ipu_config
from tests.jobs import environments


def ipu_config() -> Any:
    distribution = SimpleNamespace(process_count=0, process_index=0)
    return SimpleNamespace(
        select_ipus=None,
        experimental=SimpleNamespace(multi_replica_distribution=distribution),
    )


class Devices(list[Any]):
    """A repeated field of a protobuf."""

    def add(self) -> Any:
        self.append(SimpleNamespace(cfg_index=None))
        return self[-1]


@pytest.fixture(autouse=True)
def second_of_two_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environments((2, 2))[1].items():
        monkeypatch.setenv(name, value)


def test_it_sets_the_instance_and_its_device() -> None:
    config = ipu_config()

    assert set_ipu_config(config) is config
    distribution = config.experimental.multi_replica_distribution
    assert (distribution.process_count, distribution.process_index) == (2, 1)
    assert config.select_ipus == [5]


def test_the_choice_of_devices_can_be_left_alone() -> None:
    config = ipu_config()
    set_ipu_config(config, ipus_per_replica=1, configure_device=False)

    assert config.select_ipus is None
    assert config.experimental.multi_replica_distribution.process_index == 1


def test_the_deprecated_options_are_set_too() -> None:
    options = SimpleNamespace(
        multi_replica_process_count=0,
        multi_replica_process_index=0,
        device_config=Devices([SimpleNamespace(cfg_index=7)]),
    )
    set_ipu_config(options)

    assert options.multi_replica_process_count == 2
    assert options.multi_replica_process_index == 1
    assert [device.cfg_index for device in options.device_config] == [5]


@pytest.mark.parametrize("configure_device", [True, False])
def test_another_number_of_ipus_per_replica_is_refused(configure_device: bool) -> None:
    with pytest.raises(
        ValueError, match="asked for 4 IPUs per replica, but this job"
    ) as error:
        set_ipu_config(ipu_config(), 4, configure_device)

    assert str(error.value) == (
        "set_ipu_config was asked for 4 IPUs per replica, but this job has 1. Start it "
        "with poprun --ipus-per-replica 4, or ask for 1."
    )


def test_what_is_no_configuration_is_refused() -> None:
    with pytest.raises(TypeError) as error:
        set_ipu_config({})

    assert str(error.value) == (
        "set_ipu_config got a dict, but takes an IPUConfig of "
        "tensorflow.python.ipu.config, or the IpuOptions that "
        "tensorflow.python.ipu.utils.create_ipu_config() returns."
    )
