"""IPUConfig: the options of an IPU system, with checked names and types.

Options for numbers of devices and processes are used; the others are about a chip's
memory, its compiler and its arithmetic: they are checked and kept, and change nothing
on a CPU.
"""

import copy
import difflib
import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

from .refusals import logger, refuse


class SelectionOrder(enum.Enum):
    """In which order the IPUs of a device are used."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class ExecutionProfileType(enum.Enum):
    """The contents of an execution profile."""

    NO_PROFILE = 0
    DEVICE_PROFILE = 1
    IPU_PROFILE = 2
    TILE_PROFILE = 3


class DeviceConnectionType(enum.Enum):
    """When a process attaches to its device."""

    ALWAYS = 0
    ON_DEMAND = 1
    NEVER = 2
    PRE_COMPILE = 3


class MergeRemoteBuffersBehaviour(enum.Enum):
    """The buffers outside the chip that are merged."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class SchedulingAlgorithm(enum.Enum):
    """How the operations of a program are ordered."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(enum.Enum):
    """Where results are rounded at random."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @staticmethod
    def from_bool(value: bool) -> "StochasticRoundingBehaviour":
        """Return ON or OFF."""
        behaviour = StochasticRoundingBehaviour
        return behaviour.ON if value else behaviour.OFF


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


# Categories and the option's name, with dots: the default.
_DEFAULTS: dict[str, Any] = {
    "allow_recompute": False,
    "selection_order": SelectionOrder.AUTO,
    "serialization_output_folder": "",
    "compilation_poplar_options": {},
    "gcl_poplar_options": {},
    "auto_select_ipus": [],
    "select_ipus": [],
    "convolutions.poplar_options": {},
    "device_connection.type": DeviceConnectionType.ALWAYS,
    "device_connection.version": "",
    "device_connection.enable_remote_buffers": False,
    "slices.poplar_options": {},
    "experimental.always_rearrange_copies_on_the_host": False,
    "experimental.enable_remote_buffer_embedding": False,
    "experimental.enable_prng_stability": False,
    "experimental.multi_replica_distribution.process_index": 0,
    "experimental.multi_replica_distribution.process_count": 0,
    "floating_point_behaviour.inv": False,
    "floating_point_behaviour.div0": False,
    "floating_point_behaviour.oflo": False,
    "floating_point_behaviour.esr": StochasticRoundingBehaviour.OFF,
    "floating_point_behaviour.nanoo": False,
    "floating_point_behaviour.set_all": False,
    "io_tiles.num_io_tiles": 0,
    "io_tiles.place_ops_on_io_tiles": False,
    "io_tiles.available_memory_proportion": 0.9,
    "ipu_model.compile_ipu_code": True,
    "ipu_model.tiles_per_ipu": 0,
    "ipu_model.version": "ipu2",
    "matmuls.clear_pass_type": False,
    "matmuls.poplar_options": {},
    "norms.use_stable_statistics": False,
    "norms.experimental.distributed_batch_norm_replica_group_size": 1,
    "optimizations.math.fast": False,
    "optimizations.math.dot_strength": True,
    "optimizations.prefetch_data_streams": True,
    "optimizations.combine_embedding_lookups": False,
    "optimizations.combine_matmuls": False,
    "optimizations.enable_graph_outlining": True,
    "optimizations.merge_infeed_io_copies": False,
    "optimizations.maximum_cross_replica_sum_buffer_size": 0,
    "optimizations.maximum_reduce_scatter_buffer_size": 0,
    "optimizations.maximum_inter_ipu_copies_buffer_size": 0,
    "optimizations.maximum_send_recv_cluster_size": 0,
    "optimizations.maximum_reduce_many_buffer_size": 0,
    "optimizations.maximum_all_gather_buffer_size": 0,
    "optimizations.minimum_remote_tensor_size": 128,
    "optimizations.merge_remote_buffers": MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
    "optimizations.enable_gather_simplifier": True,
    "optimizations.triangular_solve_expander_block_size": 0,
    "optimizations.cholesky_block_size": 0,
    "optimizations.enable_fast_math": False,
    "optimizations.enable_dynamic_slice_replacement": True,
    "optimizations.maximum_all_to_all_buffer_size": 0,
    "pooling.poplar_options": {},
    "scheduling.algorithm": SchedulingAlgorithm.CHOOSE_BEST,
    "scheduling.maximum_scheduler_lookahead_depth": 5,
    "scheduling.maximum_scheduler_search_space_size": 64,
}
# The options that take values of other types than the default's.
_TYPES = {
    "auto_select_ipus": (int, list, tuple),
    "select_ipus": (int, list, tuple),
    "floating_point_behaviour.esr": (StochasticRoundingBehaviour, bool),
}
_DEPRECATED = {"optimizations.enable_fast_math": "set optimizations.math.fast instead."}
OPTIONS = {
    name: AttributeMetadata(
        name=name,
        default=default,
        types=_TYPES.get(name, (type(default),)),
        deprecated_msg=_DEPRECATED.get(name),
    )
    for name, default in _DEFAULTS.items()
}


class Category:
    """Options and categories of them, as attributes."""

    def __init__(self, prefix: str = "") -> None:
        """Begin with the defaults.

        Args:
            prefix: The part of the options' names before the names of attributes.
        """
        values: dict[str, Any] = {}
        for name, option in OPTIONS.items():
            key, *rest = name.removeprefix(prefix).split(".")
            if name.startswith(prefix) and key not in values:
                values[key] = (
                    Category(f"{prefix}{key}.") if rest else copy.copy(option.default)
                )
        self.__dict__.update(_values=values, _prefix=prefix)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self.get_attribute_metadata(name)
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        metadata = self.get_attribute_metadata(name)
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
        """Return the description of an option, by its name with dots.

        Raises:
            UnknownOptionError: There is none of that name.
        """
        first, _, rest = attr.partition(".")
        name = f"{self._prefix}{first}"
        if first not in self._values:
            close = difflib.get_close_matches(first, self._values)
            hint = f" Did you mean '{self._prefix}{close[0]}'?" if close else ""
            raise UnknownOptionError(
                f"'{first}' is not a valid attribute of this config.{hint}"
            )
        if not rest:
            return OPTIONS.get(name) or AttributeMetadata(name=name)
        if name in OPTIONS:
            raise ValueError(f"{name} is an option, and has no {rest}.")
        category: Category = self._values[first]
        return category.get_attribute_metadata(rest)


class UnknownOptionError(ValueError, AttributeError):
    """There is no such option: a ValueError as Graphcore's, and one for hasattr()."""


def read_option(config: Category, name: str) -> Any:
    """Return the value of an option, by its name with dots."""
    return reduce(getattr, name.split("."), config)


def set_option(config: Category, name: str, value: object) -> None:
    """Set an option by its name with dots."""
    *categories, last = name.split(".")
    setattr(reduce(getattr, categories, config), last, value)


class IPUConfig(Category):
    """All options of an IPU system."""

    def __init__(self) -> None:
        super().__init__()

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Let this process compute as these options say."""
        configure_ipu_system(self, device)


class IpuOptions(IPUConfig):
    """The options as the older functions of `utils` set them."""

    def to_config(self) -> IPUConfig:
        """Return the options as an IPUConfig."""
        config = IPUConfig()
        config.__dict__.update(copy.deepcopy(self.__dict__))
        return config


class _System:
    """STATE: the configuration of this process, and its checks."""

    config: IPUConfig | None = None
    # Programs may be compiled before or after the system is configured.
    checks: ClassVar[list[Callable[[], None]]] = []


def configure_ipu_system(
    config: IPUConfig,
    device: str = "cpu",
    reset_configuration: bool = True,
) -> None:
    """Let this process compute as the options say.

    Args:
        config: The options, which are copied.
        device: The CPU beside the IPUs; here there is one device.
        reset_configuration: Whether another configuration may be replaced.
    """
    if not isinstance(config, IPUConfig):
        raise TypeError(f"{config!r} is neither an IPUConfig nor IpuOptions.")
    _check_options(config)
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


def _check_options(config: IPUConfig) -> None:
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
