"""The settings that PopDist gives to a configuration of TensorFlow's IPUs."""

from typing import Any, TypeVar

import popdist

T = TypeVar("T")


def set_ipu_config(
    config: T, ipus_per_replica: int | None = None, configure_device: bool = True
) -> T:
    """Set the instance's number and device in a configuration, and return it.

    Args:
        config: An IPUConfig, or the IpuOptions from the deprecated create_ipu_config().
        ipus_per_replica: The expected value of poprun's --ipus-per-replica; None for no
            check.
        configure_device: Whether to select the device of this instance.

    Raises:
        TypeError: The configuration is neither of them.
        ValueError: The replicas of this job span a different number of IPUs.
    """
    _check_ipus(ipus_per_replica)
    options: Any = config
    if hasattr(options, "select_ipus") and hasattr(options, "experimental"):
        distribution = options.experimental.multi_replica_distribution
        distribution.process_count = popdist.getNumInstances()
        distribution.process_index = popdist.getInstanceIndex()
        if configure_device:
            options.select_ipus = [popdist.getDeviceId(ipus_per_replica)]
    elif hasattr(options, "device_config") and hasattr(
        options, "multi_replica_process_count"
    ):
        options.multi_replica_process_count = popdist.getNumInstances()
        options.multi_replica_process_index = popdist.getInstanceIndex()
        if configure_device:
            del options.device_config[:]
            device = options.device_config.add()
            device.cfg_index = popdist.getDeviceId(ipus_per_replica)
    else:
        raise TypeError(
            f"set_ipu_config got a {type(config).__name__}, but takes an IPUConfig of "
            "tensorflow.python.ipu.config, or the IpuOptions that "
            "tensorflow.python.ipu.utils.create_ipu_config() returns."
        )
    return config


def _check_ipus(expected: int | None) -> None:
    if expected is None or not popdist.isPopdistEnvSet():
        return
    if not popdist.checkNumIpusPerReplica(expected):
        ipus = popdist.getNumIpusPerReplica()
        raise ValueError(
            f"set_ipu_config was asked for {expected} IPUs per replica, but this job "
            f"has {ipus}. Start it with poprun --ipus-per-replica {expected}, or ask "
            f"for {ipus}."
        )
