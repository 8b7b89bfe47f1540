"""The older functions on the options of an IPU system, seeds and variables."""

import ast
import os
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

import tensorflow as tf

from popdist.replicated.seeds import seed_of

from .config import *  # noqa: F403
from .config import (
    OPTIONS,
    IpuOptions,
    MergeRemoteBuffersBehaviour,
    read_option,
    set_option,
)
from .refusals import NO_REPORTS, logger, refused
from .replication import process_index, selected_ipus

# The arguments of the old functions. The default of an argument is its option's, unless
# it stands here: None leaves the option as it is, and ... is no default.
_BUFFERS = (
    "max_cross_replica_sum_buffer_size max_reduce_scatter_buffer_size "
    "max_inter_ipu_copies_buffer_size max_send_recv_cluster_size "
    "minimum_remote_tensor_size"
)
_ARGUMENTS = {
    "set_serialization_options": "output_folder",
    "set_optimization_options": (
        f"combine_embedding_lookups combine_matmuls {_BUFFERS} "
        "merge_remote_buffers=None gather_simplifier "
        "triangular_solve_expander_block_size cholesky_block_size enable_fast_math"
    ),
    "set_norm_options": (
        "use_stable_statistics experimental_distributed_batch_norm_replica_group_size"
    ),
    "set_compilation_options": "compilation_options",
    "set_convolution_options": "convolution_options",
    "set_matmul_options": "matmul_options clear_pass_type",
    "set_pooling_options": "pooling_options",
    "set_transfer_options": "use_verified_transfers",
    "set_verification_options": "verification_options",
    "set_report_options": "report_options graph_options execution_options",
    "set_ipu_model_options": (
        "compile_ipu_code tiles_per_ipu=None ipu_model_version=None"
    ),
    "set_recomputation_options": "allow_recompute=True allow_stateful_recompute",
    "set_floating_point_behaviour_options": (
        "inv=True div0=True oflo=True esr=True nanoo=True"
    ),
    "set_io_tile_options": (
        "num_io_tiles=... place_ops_on_io_tiles=None "
        "io_tile_available_memory_proportion=None"
    ),
    "set_gcl_options": "num_io_tiles gcl_options",
    "set_ipu_connection_type": (
        "connection_type=None ipu_version=None enable_remote_buffers"
    ),
    "create_ipu_config": (
        "profiling enable_ipu_events use_poplar_text_report use_poplar_cbor_report "
        "profile_execution enable_poplar_serialized_graph report_every_nth_execution "
        "max_report_size report_directory scheduler_selection "
        "always_rearrange_copies_on_the_host merge_infeed_io_copies "
        "disable_graph_convolution_caching disable_graph_outlining "
        f"retain_control_dependencies {_BUFFERS} max_scheduler_lookahead_depth "
        "max_scheduler_search_space_size prefetch_data_streams selection_order "
        "enable_experimental_remote_buffer_embedding"
    ),
}
# The options of arguments that have another name, but for "max" in place of "maximum".
# The arguments that have no option ask for profiles and reports of a chip.
_RENAMED = {
    "output_folder": "serialization_output_folder",
    "gather_simplifier": "optimizations.enable_gather_simplifier",
    "enable_fast_math": "optimizations.math.fast",
    "experimental_distributed_batch_norm_replica_group_size": (
        "norms.experimental.distributed_batch_norm_replica_group_size"
    ),
    "compilation_options": "compilation_poplar_options",
    "convolution_options": "convolutions.poplar_options",
    "matmul_options": "matmuls.poplar_options",
    "pooling_options": "pooling.poplar_options",
    "gcl_options": "gcl_poplar_options",
    "ipu_model_version": "ipu_model.version",
    "io_tile_available_memory_proportion": "io_tiles.available_memory_proportion",
    "connection_type": "device_connection.type",
    "ipu_version": "device_connection.version",
    "enable_experimental_remote_buffer_embedding": (
        "experimental.enable_remote_buffer_embedding"
    ),
}
_BY_LAST_NAME = {name.rpartition(".")[2]: name for name in OPTIONS}


def _option_of(argument: str) -> str | None:
    """Return the option that an argument sets; None for reports of a chip."""
    renamed = _RENAMED.get(argument)
    return renamed or _BY_LAST_NAME.get(argument.replace("max_", "maximum_", 1))


def _parameter(text: str) -> Parameter:
    name, _, default = text.partition("=")
    option = _option_of(name)
    value: Any
    if default == "...":
        value = Parameter.empty
    elif default:
        value = ast.literal_eval(default)
    else:
        value = OPTIONS[option].default if option is not None else None
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value)


def _set(options: IpuOptions, argument: str, value: Any) -> None:
    """Set the option of an argument; None leaves it as it is."""
    option = _option_of(argument)
    if option is None and value:
        logger.warning("%s has no effect: there is no IPU to report on.", argument)
    if option is None or value is None:
        return
    if argument == "merge_remote_buffers" and isinstance(value, bool):
        value = MergeRemoteBuffersBehaviour(int(value))
    elif argument == "ipu_version":
        value = value if isinstance(value, str) else f"ipu{value}"
    elif isinstance(value, dict):
        value = {**read_option(options, option), **value}
    set_option(options, option, value)


def _setter(name: str, arguments: str) -> Callable[..., IpuOptions]:
    """Return an old function, which sets options of an IpuOptions and returns it."""
    parameters = [_parameter(text) for text in arguments.split()]
    if name != "create_ipu_config":
        opts = Parameter("opts", Parameter.POSITIONAL_OR_KEYWORD)
        parameters.insert(0, opts)
    signature = Signature(parameters)

    def setter(*args: Any, **kwargs: Any) -> IpuOptions:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        options = _check_options(values.pop("opts", IpuOptions()))
        for argument, value in values.items():
            _set(options, argument, value)
        return options

    setter.__name__ = setter.__qualname__ = name
    setter.__doc__ = "Set options of an IpuOptions, and return it."
    if name == "create_ipu_config":
        setter.__doc__ = "Return a new IpuOptions with these options."
    setter.__dict__["__signature__"] = signature
    return setter


globals().update({name: _setter(name, text) for name, text in _ARGUMENTS.items()})


def auto_select_ipus(
    opts: IpuOptions, num_ipus: int | list[int] | tuple[int, ...]
) -> IpuOptions:
    """Set how many IPUs each device has, and return the options."""
    _check_no_devices(opts)
    opts.auto_select_ipus = [num_ipus] if isinstance(num_ipus, int) else list(num_ipus)
    return opts


def select_ipus(opts: IpuOptions, indices: Sequence[int]) -> IpuOptions:
    """Set which IPUs the devices have, and return the options."""
    _check_no_devices(opts)
    opts.select_ipus = list(indices)
    return opts


def set_experimental_multi_replica_distribution_options(
    opts: IpuOptions, process_count: int, process_index: int
) -> IpuOptions:
    """Set how many processes the replicas are distributed over; return the options."""
    if not 0 <= process_index < process_count:
        raise ValueError("0 <= process_index < process_count")
    distribution = _check_options(opts).experimental.multi_replica_distribution
    distribution.process_count = process_count
    distribution.process_index = process_index
    return opts


def _check_no_devices(opts: IpuOptions) -> None:
    if _check_options(opts).auto_select_ipus or opts.select_ipus:
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
