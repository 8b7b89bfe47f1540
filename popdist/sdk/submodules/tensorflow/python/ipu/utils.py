"""The older functions on the options of an IPU system, seeds and variables."""

import os
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

import tensorflow as tf

from popdist.replicated.seeds import seed_of

from .config import (
    IPUConfig,
    IpuOptions,
    configure_ipu_system,
    get_ipu_config,
    reset_ipu_configuration,
)
from .enums import (
    DeviceConnectionType,
    ExecutionProfileType,
    MergeRemoteBuffersBehaviour,
    SelectionOrder,
)
from .refusals import NO_REPORTS, logger, refused
from .replication import process_index, selected_ipus

__all__ = [
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "IpuOptions",
    "MergeRemoteBuffersBehaviour",
    "SelectionOrder",
    "auto_select_ipus",
    "configure_ipu_system",
    "create_ipu_config",
    "get_ipu_config",
    "get_num_of_ipus_in_device",
    "move_variable_initialization_to_cpu",
    "reset_ipu_configuration",
    "reset_ipu_seed",
    "running_on_ipu_model",
    "select_ipus",
    "set_experimental_multi_replica_distribution_options",
]

Setter = Callable[..., IpuOptions]

# The option of an IPUConfig that each argument of the old functions sets, and its
# default. An argument without a name asks for profiles and reports of a chip.
_BUFFERS = {
    "max_cross_replica_sum_buffer_size": (
        "optimizations.maximum_cross_replica_sum_buffer_size",
        0,
    ),
    "max_reduce_scatter_buffer_size": (
        "optimizations.maximum_reduce_scatter_buffer_size",
        0,
    ),
    "max_inter_ipu_copies_buffer_size": (
        "optimizations.maximum_inter_ipu_copies_buffer_size",
        0,
    ),
    "max_send_recv_cluster_size": ("optimizations.maximum_send_recv_cluster_size", 0),
    "minimum_remote_tensor_size": ("optimizations.minimum_remote_tensor_size", 128),
}
_FLOATS = "floating_point_behaviour"
_ARGUMENTS: dict[str, dict[str, tuple[str, Any]]] = {
    "set_serialization_options": {"output_folder": ("serialization_output_folder", "")},
    "set_optimization_options": {
        "combine_embedding_lookups": ("optimizations.combine_embedding_lookups", False),
        "combine_matmuls": ("optimizations.combine_matmuls", False),
        **_BUFFERS,
        "merge_remote_buffers": ("optimizations.merge_remote_buffers", None),
        "gather_simplifier": ("optimizations.enable_gather_simplifier", True),
        "triangular_solve_expander_block_size": (
            "optimizations.triangular_solve_expander_block_size",
            0,
        ),
        "cholesky_block_size": ("optimizations.cholesky_block_size", 0),
        "enable_fast_math": ("optimizations.math.fast", False),
    },
    "set_norm_options": {
        "use_stable_statistics": ("norms.use_stable_statistics", False),
        "experimental_distributed_batch_norm_replica_group_size": (
            "norms.experimental.distributed_batch_norm_replica_group_size",
            1,
        ),
    },
    "set_compilation_options": {
        "compilation_options": ("compilation_poplar_options", None)
    },
    "set_convolution_options": {
        "convolution_options": ("convolutions.poplar_options", None)
    },
    "set_matmul_options": {
        "matmul_options": ("matmuls.poplar_options", None),
        "clear_pass_type": ("matmuls.clear_pass_type", False),
    },
    "set_pooling_options": {"pooling_options": ("pooling.poplar_options", None)},
    "set_transfer_options": {"use_verified_transfers": ("", False)},
    "set_verification_options": {"verification_options": ("", None)},
    "set_report_options": {
        "report_options": ("", None),
        "graph_options": ("", None),
        "execution_options": ("", None),
    },
    "set_ipu_model_options": {
        "compile_ipu_code": ("ipu_model.compile_ipu_code", True),
        "tiles_per_ipu": ("ipu_model.tiles_per_ipu", None),
        "ipu_model_version": ("ipu_model.version", None),
    },
    "set_recomputation_options": {
        "allow_recompute": ("allow_recompute", True),
        "allow_stateful_recompute": ("", None),
    },
    "set_floating_point_behaviour_options": {
        name: (f"{_FLOATS}.{name}", True)
        for name in ("inv", "div0", "oflo", "esr", "nanoo")
    },
    "set_io_tile_options": {
        "num_io_tiles": ("io_tiles.num_io_tiles", Parameter.empty),
        "place_ops_on_io_tiles": ("io_tiles.place_ops_on_io_tiles", None),
        "io_tile_available_memory_proportion": (
            "io_tiles.available_memory_proportion",
            None,
        ),
    },
    "set_gcl_options": {
        "num_io_tiles": ("io_tiles.num_io_tiles", 0),
        "gcl_options": ("gcl_poplar_options", None),
    },
    "set_ipu_connection_type": {
        "connection_type": ("device_connection.type", None),
        "ipu_version": ("device_connection.version", None),
        "enable_remote_buffers": ("device_connection.enable_remote_buffers", False),
    },
}
_CREATE: dict[str, tuple[str, Any]] = {
    "profiling": ("", False),
    "enable_ipu_events": ("", False),
    "use_poplar_text_report": ("", False),
    "use_poplar_cbor_report": ("", False),
    "profile_execution": ("", None),
    "enable_poplar_serialized_graph": ("", False),
    "report_every_nth_execution": ("", 0),
    "max_report_size": ("", None),
    "report_directory": ("", ""),
    "scheduler_selection": ("", ""),
    "always_rearrange_copies_on_the_host": (
        "experimental.always_rearrange_copies_on_the_host",
        False,
    ),
    "merge_infeed_io_copies": ("optimizations.merge_infeed_io_copies", False),
    "disable_graph_convolution_caching": ("", None),
    "disable_graph_outlining": ("", False),
    "retain_control_dependencies": ("", False),
    **_BUFFERS,
    "max_scheduler_lookahead_depth": (
        "scheduling.maximum_scheduler_lookahead_depth",
        5,
    ),
    "max_scheduler_search_space_size": (
        "scheduling.maximum_scheduler_search_space_size",
        64,
    ),
    "prefetch_data_streams": ("optimizations.prefetch_data_streams", True),
    "selection_order": ("selection_order", None),
    "enable_experimental_remote_buffer_embedding": (
        "experimental.enable_remote_buffer_embedding",
        False,
    ),
}


def _signature(arguments: dict[str, tuple[str, Any]], *first: Parameter) -> Signature:
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Signature(
        [
            *first,
            *(
                Parameter(name, kind, default=default)
                for name, (_, default) in arguments.items()
            ),
        ]
    )


def _set(options: IpuOptions, path: str, name: str, value: Any) -> None:
    """Set one option of the IPUConfig; None leaves it as it is."""
    if not path:
        if value:
            logger.warning("%s has no effect: there is no IPU to report on.", name)
        return
    if value is None:
        return
    *categories, last = path.split(".")
    category: Any = options.config
    for each in categories:
        category = getattr(category, each)
    if name == "merge_remote_buffers" and isinstance(value, bool):
        value = MergeRemoteBuffersBehaviour(int(value))
    elif name == "ipu_version":
        value = value if isinstance(value, str) else f"ipu{value}"
    elif isinstance(value, dict):
        value = {**getattr(category, last), **value}
    setattr(category, last, value)


def _setter(name: str, arguments: dict[str, tuple[str, Any]]) -> Setter:
    """Return the old function that sets some options."""
    opts = Parameter("opts", Parameter.POSITIONAL_OR_KEYWORD)
    signature = _signature(arguments, opts)

    def setter(*args: Any, **kwargs: Any) -> IpuOptions:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        options: IpuOptions = _check_options(values.pop("opts"))
        for key, value in values.items():
            _set(options, arguments[key][0], key, value)
        return options

    setter.__name__ = setter.__qualname__ = name
    setter.__doc__ = "Set options of an IpuOptions, and return it."
    setter.__dict__["__signature__"] = signature
    return setter


globals().update({name: _setter(name, table) for name, table in _ARGUMENTS.items()})
__all__ += list(_ARGUMENTS)


def create_ipu_config(*args: Any, **kwargs: Any) -> IpuOptions:
    """Return options for an IPU system, as the other functions set them."""
    bound = _signature(_CREATE).bind(*args, **kwargs)
    options = IpuOptions()
    for name, value in bound.arguments.items():
        _set(options, _CREATE[name][0], name, value)
    return options


def auto_select_ipus(
    opts: IpuOptions, num_ipus: int | list[int] | tuple[int, ...]
) -> IpuOptions:
    """Set how many IPUs each device has, and return the options."""
    _check_no_devices(opts)
    for count in [num_ipus] if isinstance(num_ipus, int) else num_ipus:
        opts.device_config.add().auto_count = count
    return opts


def select_ipus(opts: IpuOptions, indices: Sequence[int]) -> IpuOptions:
    """Set which IPUs the devices have, and return the options."""
    _check_no_devices(opts)
    for index in indices:
        opts.device_config.add().cfg_index = index
    return opts


def set_experimental_multi_replica_distribution_options(
    opts: IpuOptions, process_count: int, process_index: int
) -> IpuOptions:
    """Set how many processes the replicas are distributed over; return the options."""
    if not 0 <= process_index < process_count:
        raise ValueError("0 <= process_index < process_count")
    _check_options(opts).multi_replica_process_count = process_count
    opts.multi_replica_process_index = process_index
    return opts


def _check_no_devices(opts: IpuOptions) -> None:
    if _check_options(opts).device_config:
        raise ValueError("IPU devices have already been configured.")


def _check_options(opts: object) -> IpuOptions:
    if not isinstance(opts, IpuOptions):
        raise TypeError(
            f"{opts!r} is not an IpuOptions object. Create one with "
            "create_ipu_config(), or set the attributes of an IPUConfig."
        )
    return opts


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """Return how many IPUs the configuration selects for a device.

    Args:
        ipu_device: The device, such as /device:IPU:0.
        device: The CPU beside it.
    """
    return selected_ipus(int(ipu_device.rpartition(":")[2]))


def running_on_ipu_model() -> bool:
    """Return whether the program asks for Graphcore's model of an IPU."""
    return "--use_ipu_model" in os.environ.get("TF_POPLAR_FLAGS", "")


def reset_ipu_seed(
    seed: int,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> None:
    """Set the seed of random numbers from here on: TensorFlow's global seed.

    Args:
        seed: The seed.
        device: The device; all devices of a process have one seed.
        cpu_device: The CPU beside it.
        experimental_identical_replicas: Whether all processes of a distributed program
            draw the same numbers.
    """
    if not experimental_identical_replicas and (index := process_index()):
        seed = seed_of(seed, index, 0)
    tf.random.set_seed(seed)


def move_variable_initialization_to_cpu(graph: Any = None) -> None:
    """Leave all as it is: variables are initialised on the CPU anyway."""


for _name in (
    "extract_all_strings_from_event_trace",
    "extract_all_types_from_event_trace",
    "extract_all_events",
    "extract_compile_reports",
    "extract_poplar_serialized_graphs",
    "extract_execute_reports",
):
    globals()[_name] = refused(_name, NO_REPORTS)
for _name in ("export_dataset_to_file", "export_inputs_to_file"):
    globals()[_name] = refused(
        _name, "its files are read by Poplar's own programs alone."
    )
