"""The values that options of an IPU system take."""

import enum


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
