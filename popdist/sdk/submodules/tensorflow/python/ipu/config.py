"""IPUConfig: the options of an IPU system, with checked names and types.

Options for numbers of devices and processes are used; the others are about a chip's
memory, its compiler and its arithmetic: they are checked and kept, and change nothing
on a CPU.
"""

import copy
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from .enums import (
    DeviceConnectionType,
    ExecutionProfileType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from .refusals import logger, refuse

__all__ = [
    "AttributeMetadata",
    "Category",
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "IpuOptions",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "StochasticRoundingBehaviour",
    "check_options",
    "check_when_configured",
    "configure_ipu_system",
    "current",
    "get_ipu_config",
    "is_configured",
    "reset_ipu_configuration",
]

Options = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttributeMetadata:
    """The description of an option: its name in full, its default, its types."""

    name: str
    default: Any = None
    types: tuple[type, ...] = ()
    deprecated_msg: str | None = None

    @property
    def deprecated(self) -> bool:
        """Whether another option should be set instead."""
        return self.deprecated_msg is not None

    @property
    def type(self) -> str:
        """The names of the types that the option takes."""
        return " or ".join(kind.__name__ for kind in self.types)

    def warn_if_deprecated(self) -> None:
        """Log a warning if another option should be set instead."""
        if self.deprecated_msg is not None:
            logger.warning("%s is deprecated: %s", self.name, self.deprecated_msg)

    def check_type(self, value: object) -> None:
        """Raise a TypeError unless the option takes values of this type."""
        if type(value) not in self.types:
            raise TypeError(
                f"{self.name} is {value!r}, but must be of type {self.type}."
            )


@dataclass(frozen=True, slots=True)
class _Option:
    """The default of an option, and the types of its values."""

    default: Any
    types: tuple[type, ...]
    deprecated_msg: str | None = None


def _category(**options: Any) -> Options:
    return MappingProxyType(options)


_NUMBERS = _Option([], (int, list, tuple))
_POPLAR = _category(poplar_options={})
_OPTIONS = _category(
    allow_recompute=False,
    selection_order=SelectionOrder.AUTO,
    serialization_output_folder="",
    compilation_poplar_options={},
    gcl_poplar_options={},
    auto_select_ipus=_NUMBERS,
    select_ipus=_NUMBERS,
    convolutions=_POPLAR,
    device_connection=_category(
        type=DeviceConnectionType.ALWAYS, version="", enable_remote_buffers=False
    ),
    slices=_POPLAR,
    experimental=_category(
        always_rearrange_copies_on_the_host=False,
        enable_remote_buffer_embedding=False,
        enable_prng_stability=False,
        multi_replica_distribution=_category(process_index=0, process_count=0),
    ),
    floating_point_behaviour=_category(
        inv=False,
        div0=False,
        oflo=False,
        esr=_Option(
            StochasticRoundingBehaviour.OFF, (StochasticRoundingBehaviour, bool)
        ),
        nanoo=False,
        set_all=False,
    ),
    io_tiles=_category(
        num_io_tiles=0, place_ops_on_io_tiles=False, available_memory_proportion=0.9
    ),
    ipu_model=_category(compile_ipu_code=True, tiles_per_ipu=0, version="ipu2"),
    matmuls=_category(clear_pass_type=False, poplar_options={}),
    norms=_category(
        use_stable_statistics=False,
        experimental=_category(distributed_batch_norm_replica_group_size=1),
    ),
    optimizations=_category(
        math=_category(fast=False, dot_strength=True),
        prefetch_data_streams=True,
        combine_embedding_lookups=False,
        combine_matmuls=False,
        enable_graph_outlining=True,
        merge_infeed_io_copies=False,
        maximum_cross_replica_sum_buffer_size=0,
        maximum_reduce_scatter_buffer_size=0,
        maximum_inter_ipu_copies_buffer_size=0,
        maximum_send_recv_cluster_size=0,
        maximum_reduce_many_buffer_size=0,
        maximum_all_gather_buffer_size=0,
        minimum_remote_tensor_size=128,
        merge_remote_buffers=MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
        enable_gather_simplifier=True,
        triangular_solve_expander_block_size=0,
        cholesky_block_size=0,
        enable_fast_math=_Option(
            False, (bool,), "set optimizations.math.fast instead."
        ),
        enable_dynamic_slice_replacement=True,
        maximum_all_to_all_buffer_size=0,
    ),
    pooling=_POPLAR,
    scheduling=_category(
        algorithm=SchedulingAlgorithm.CHOOSE_BEST,
        maximum_scheduler_lookahead_depth=5,
        maximum_scheduler_search_space_size=64,
    ),
)


class Category:
    """Options and categories of them, as attributes."""

    def __init__(self, options: Options, name: str = "") -> None:
        values: dict[str, Any] = {}
        metadata: dict[str, AttributeMetadata] = {}
        for key, entry in options.items():
            full = f"{name}.{key}" if name else key
            if isinstance(entry, MappingProxyType):
                values[key] = Category(entry, full)
                metadata[key] = AttributeMetadata(name=full)
                continue
            if not isinstance(entry, _Option):
                entry = _Option(entry, (type(entry),))
            values[key] = copy.copy(entry.default)
            metadata[key] = AttributeMetadata(
                name=full,
                default=entry.default,
                types=entry.types,
                deprecated_msg=entry.deprecated_msg,
            )
        self.__dict__.update(_values=values, _metadata=metadata)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._check(name)
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        metadata = self._check(name)
        if isinstance(self._values[name], Category):
            raise TypeError(f"{metadata.name} is a category and cannot be assigned to.")
        metadata.warn_if_deprecated()
        metadata.check_type(value)
        self._values[name] = value

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Category":
        new = type(self).__new__(type(self))
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Category) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]

    def get_attribute_metadata(self, attr: str) -> AttributeMetadata:
        """Return the description of an option, by its name with dots."""
        first, _, rest = attr.partition(".")
        metadata = self._check(first)
        if not rest:
            return metadata
        entry = self._values[first]
        if not isinstance(entry, Category):
            raise ValueError(f"{metadata.name} is an option, and has no {rest}.")
        return entry.get_attribute_metadata(rest)

    def _check(self, name: str) -> AttributeMetadata:
        """Return the description of an attribute.

        Raises:
            ValueError: There is none of that name.
        """
        metadata: dict[str, AttributeMetadata] = self._metadata
        if name in metadata:
            return metadata[name]
        close = difflib.get_close_matches(name, metadata)
        hint = f" Did you mean '{metadata[close[0]].name}'?" if close else ""
        raise ValueError(f"'{name}' is not a valid attribute of this config.{hint}")


class IPUConfig(Category):
    """All options of an IPU system."""

    def __init__(self) -> None:
        super().__init__(_OPTIONS)

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Let this process compute as these options say."""
        configure_ipu_system(self, device)


@dataclass(slots=True)
class _Device:
    """The IPUs of a device: an index, or a number of any IPUs."""

    cfg_index: int | None = None
    auto_count: int | None = None


class _Devices(list[_Device]):
    """The devices of IpuOptions."""

    def add(self) -> _Device:
        """Add a device, and return it."""
        self.append(_Device())
        return self[-1]


class IpuOptions:
    """The options as the older functions of `utils` set them."""

    def __init__(self) -> None:
        # Options that concern neither devices nor processes.
        self.config = IPUConfig()
        self.device_config = _Devices()
        self.multi_replica_process_count = 0
        self.multi_replica_process_index = 0

    def to_config(self) -> IPUConfig:
        """Return the options as an IPUConfig."""
        config = copy.deepcopy(self.config)
        distribution = config.experimental.multi_replica_distribution
        distribution.process_count = self.multi_replica_process_count
        distribution.process_index = self.multi_replica_process_index
        devices = self.device_config
        config.auto_select_ipus = [d.auto_count for d in devices if d.auto_count]
        config.select_ipus = [d.cfg_index for d in devices if d.cfg_index is not None]
        return config


class _System:
    """STATE: the configuration of this process, and its checks."""

    config: IPUConfig | None = None
    # Programs may be compiled before or after the system is configured.
    checks: ClassVar[list[Callable[[], None]]] = []


def configure_ipu_system(
    config: IPUConfig | IpuOptions,
    device: str = "cpu",
    reset_configuration: bool = True,
) -> None:
    """Let this process compute as the options say.

    Args:
        config: The options, which are copied.
        device: The CPU beside the IPUs; here there is one device.
        reset_configuration: Whether another configuration may be replaced.
    """
    if isinstance(config, IpuOptions):
        config = config.to_config()
    if not isinstance(config, IPUConfig):
        raise TypeError(f"{config!r} is neither an IPUConfig nor IpuOptions.")
    check_options(config)
    if _System.config is not None and _System.config != config:
        if not reset_configuration:
            raise RuntimeError(
                "The IPU system is configured already. Call "
                "reset_ipu_configuration() before it is configured otherwise."
            )
        logger.info("The IPU system is configured again.")
    _System.config = copy.deepcopy(config)
    for check in _System.checks:
        check()


def reset_ipu_configuration() -> None:
    """Forget the configuration of this process, and its programs."""
    _System.config = None
    _System.checks = []


def get_ipu_config(session: object = None) -> list[IPUConfig]:
    """Return the configuration of this process, in a list of one device.

    Args:
        session: Where the original asks; the process has one configuration here.

    Raises:
        RuntimeError: There is none.
    """
    if _System.config is None:
        raise RuntimeError("No IPU devices configured.")
    return [copy.deepcopy(_System.config)]


def current() -> IPUConfig:
    """Return the configuration of this process, or the default one."""
    return _System.config or IPUConfig()


def is_configured() -> bool:
    """Return whether this process has a configuration yet."""
    return _System.config is not None


def check_when_configured(check: Callable[[], None]) -> None:
    """Make a check of the configuration, now and after each change."""
    check()
    _System.checks.append(check)


def check_options(config: IPUConfig) -> None:
    """Raise an error about options that exclude each other."""
    if config.auto_select_ipus and config.select_ipus:
        raise ValueError("Only one of `auto_select_ipus` and `select_ipus` can be set.")
    select = config.select_ipus
    if not isinstance(select, int) and len(set(select)) != len(select):
        raise ValueError("All MultiIPU indices in `select_ipus` must be unique.")
    tiles, norms = config.io_tiles, config.norms.experimental
    if tiles.place_ops_on_io_tiles and not tiles.num_io_tiles:
        raise ValueError(
            "Cannot place ops on I/O tiles when io_tiles.num_io_tiles == 0"
        )
    group_size = norms.distributed_batch_norm_replica_group_size
    if group_size < 1:
        raise ValueError(
            "norms.experimental.distributed_batch_norm_replica_group_size must be at "
            "least 1."
        )
    if group_size > 1:
        refuse(
            "distributed batch norm",
            "norms.experimental.distributed_batch_norm_replica_group_size is "
            f"{group_size}. Leave it at 1, or use a SyncBatchNormalization layer.",
        )
    _check_connection(config)
    distribution = config.experimental.multi_replica_distribution
    count = distribution.process_count
    if count and not 0 <= distribution.process_index < count:
        name = "experimental.multi_replica_distribution"
        raise ValueError(
            f"{name}.process_index must be in the range [0, {name}.process_count)."
        )


def _check_connection(config: IPUConfig) -> None:
    connection = config.device_connection
    kind = DeviceConnectionType
    if connection.type not in (kind.NEVER, kind.PRE_COMPILE):
        return
    if not connection.version:
        raise ValueError(
            "device_connection.version must be set when device_connection.type is "
            "DeviceConnectionType.NEVER or DeviceConnectionType.PRE_COMPILE"
        )
    refuse(
        f"DeviceConnectionType.{connection.type.name}",
        "it compiles for IPUs without running, and CPUs need no such executable. Use "
        "ON_DEMAND or ALWAYS.",
    )
