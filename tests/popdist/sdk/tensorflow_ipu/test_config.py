import copy
import logging

import pytest
from tensorflow.python import ipu
from tensorflow.python.ipu.config import (
    DeviceConnectionType,
    IPUConfig,
    SchedulingAlgorithm,
    StochasticRoundingBehaviour,
)


def test_options_are_attributes_of_categories() -> None:
    config = IPUConfig()

    config.scheduling.algorithm = SchedulingAlgorithm.LOOK_AHEAD
    config.experimental.multi_replica_distribution.process_count = 4
    config.optimizations.math.fast = True

    assert config.scheduling.algorithm is SchedulingAlgorithm.LOOK_AHEAD
    assert config.experimental.multi_replica_distribution.process_count == 4
    assert IPUConfig().optimizations.math.fast is False


def test_a_misspelled_option_is_refused_with_the_one_that_is_near() -> None:
    config = IPUConfig()

    with pytest.raises(ValueError, match="valid attribute") as refusal:
        config.device_connection.typ = DeviceConnectionType.NEVER

    assert str(refusal.value) == (
        "'typ' is not a valid attribute of this config. Did you mean "
        "'device_connection.type'?"
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("allow_recompute", 1, "allow_recompute is 1, but must be of type bool."),
        (
            "auto_select_ipus",
            "2",
            "auto_select_ipus is '2', but must be of type int or list or tuple.",
        ),
        ("matmuls", {}, "matmuls is a category and cannot be assigned to."),
    ],
)
def test_an_option_takes_values_of_its_type(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(TypeError) as refusal:
        setattr(IPUConfig(), name, value)

    assert str(refusal.value) == message


def test_rounding_is_set_by_a_value_or_a_bool() -> None:
    behaviour = IPUConfig().floating_point_behaviour

    behaviour.esr = True
    behaviour.esr = StochasticRoundingBehaviour.from_bool(True)

    assert behaviour.esr is StochasticRoundingBehaviour.ON


def test_a_deprecated_option_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    IPUConfig().optimizations.enable_fast_math = True

    assert caplog.messages == [
        "optimizations.enable_fast_math is deprecated: set optimizations.math.fast "
        "instead."
    ]


def test_what_is_known_of_an_option_can_be_asked_for() -> None:
    metadata = IPUConfig().get_attribute_metadata("io_tiles.num_io_tiles")

    assert (metadata.name, metadata.default, metadata.type) == (
        "io_tiles.num_io_tiles",
        0,
        "int",
    )
    assert not metadata.deprecated


def test_a_copy_has_options_of_its_own() -> None:
    config = IPUConfig()
    config.auto_select_ipus = [1, 2]

    other = copy.deepcopy(config)
    other.ipu_model.version = "ipu1"

    assert other.auto_select_ipus == [1, 2]
    assert config.ipu_model.version == "ipu2"


def test_the_configuration_of_the_process_can_be_asked_for() -> None:
    with pytest.raises(RuntimeError, match="No IPU devices configured"):
        ipu.utils.get_ipu_config()
    config = IPUConfig()
    config.auto_select_ipus = [1, 2]

    config.configure_ipu_system()

    assert ipu.utils.get_ipu_config() == [config]
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:1") == 2


def test_another_configuration_replaces_the_first_if_it_may() -> None:
    config = IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    config.auto_select_ipus = 2

    with pytest.raises(RuntimeError, match="is configured already"):
        ipu.config.configure_ipu_system(config, reset_configuration=False)
    config.configure_ipu_system()

    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:0") == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"auto_select_ipus": 1, "select_ipus": [0]},
            ValueError,
            "Only one of `auto_select_ipus` and `select_ipus` can be set.",
        ),
        (
            {"select_ipus": [0, 0]},
            ValueError,
            "All MultiIPU indices in `select_ipus` must be unique.",
        ),
        (
            {"io_tiles.place_ops_on_io_tiles": True},
            ValueError,
            "Cannot place ops on I/O tiles when io_tiles.num_io_tiles == 0",
        ),
        (
            {
                "experimental.multi_replica_distribution.process_count": 2,
                "experimental.multi_replica_distribution.process_index": 2,
            },
            ValueError,
            "experimental.multi_replica_distribution.process_index must be in the "
            "range [0, experimental.multi_replica_distribution.process_count).",
        ),
        (
            {"device_connection.type": DeviceConnectionType.NEVER},
            ValueError,
            "device_connection.version must be set when device_connection.type is "
            "DeviceConnectionType.NEVER or DeviceConnectionType.PRE_COMPILE",
        ),
        (
            {
                "device_connection.type": DeviceConnectionType.PRE_COMPILE,
                "device_connection.version": "ipu2",
            },
            NotImplementedError,
            "popdist's stand-in for tensorflow.python.ipu has no "
            "DeviceConnectionType.PRE_COMPILE: it compiles for IPUs without running, "
            "and CPUs need no such executable. Use ON_DEMAND or ALWAYS.",
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    config = IPUConfig()
    for name, value in options.items():
        *categories, last = name.split(".")
        category = config
        for each in categories:
            category = getattr(category, each)
        setattr(category, last, value)

    with pytest.raises(error) as refusal:
        config.configure_ipu_system()

    assert str(refusal.value) == message


def test_only_options_can_be_configured() -> None:
    with pytest.raises(TypeError, match="neither an IPUConfig nor IpuOptions"):
        ipu.config.configure_ipu_system({})


def test_the_old_functions_set_the_same_options() -> None:
    utils = ipu.utils
    options = utils.create_ipu_config(
        max_cross_replica_sum_buffer_size=7, selection_order=utils.SelectionOrder.HOOF
    )
    options = utils.set_matmul_options(options, {"availableMemoryProportion": "0.1"})
    options = utils.set_matmul_options(options, {"use128BitConvUnitLoad": "true"})
    options = utils.set_floating_point_behaviour_options(options, esr=False)
    options = utils.set_ipu_connection_type(
        options, utils.DeviceConnectionType.ON_DEMAND, ipu_version=2
    )
    options = utils.set_optimization_options(options, merge_remote_buffers=True)
    options = utils.set_experimental_multi_replica_distribution_options(options, 2, 1)
    options = utils.auto_select_ipus(options, 4)
    config = options.to_config()

    assert config.optimizations.maximum_cross_replica_sum_buffer_size == 0
    assert config.selection_order is utils.SelectionOrder.HOOF
    assert config.matmuls.poplar_options == {
        "availableMemoryProportion": "0.1",
        "use128BitConvUnitLoad": "true",
    }
    assert config.floating_point_behaviour.inv is True
    assert config.floating_point_behaviour.esr is False
    assert config.device_connection.type is DeviceConnectionType.ON_DEMAND
    assert config.device_connection.version == "ipu2"
    assert config.optimizations.merge_remote_buffers.name == "MERGE"
    assert config.experimental.multi_replica_distribution.process_index == 1
    assert config.auto_select_ipus == [4]
    with pytest.raises(ValueError, match="already been configured"):
        utils.select_ipus(options, [0])


def test_an_old_function_takes_its_own_arguments_alone() -> None:
    options = ipu.utils.create_ipu_config()

    with pytest.raises(TypeError, match="'no_such'"):
        ipu.utils.set_norm_options(options, no_such=1)
    with pytest.raises(TypeError, match="is not an IpuOptions"):
        ipu.utils.auto_select_ipus(IPUConfig(), 1)


def test_a_report_that_is_asked_for_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        ipu.utils.create_ipu_config(profiling=True, use_poplar_text_report=False)

    assert caplog.messages == ["profiling has no effect: there is no IPU to report on."]


def test_programs_can_ask_whether_there_is_an_option() -> None:
    options = ipu.utils.create_ipu_config()

    assert hasattr(options, "auto_select_ipus")
    assert not hasattr(options, "device_config")
    with pytest.raises(ValueError, match="'device_config' is not a valid attribute"):
        _ = options.device_config
