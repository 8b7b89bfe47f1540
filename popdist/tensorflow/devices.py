"""A logical CPU for each local replica: the devices that strategies train on."""

import tensorflow as tf
from tensorflow.python.eager import context

from popdist.session import STATE


def provide_local_devices() -> None:
    """Let TensorFlow have a logical CPU for each local replica, if it still can.

    It cannot once an operation has run; local_devices() says so where they are needed.
    """
    replicas = STATE.job.instance.num_local_replicas
    if replicas == 1 or context.context()._initialized:
        return
    (cpu,) = tf.config.list_physical_devices("CPU")
    if tf.config.get_logical_device_configuration(cpu) is None:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * replicas
        )


def local_devices() -> list[str]:
    """Return the name of the device of each local replica.

    Raises:
        RuntimeError: TensorFlow has fewer.
    """
    provide_local_devices()
    replicas = STATE.job.instance.num_local_replicas
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    if len(names) < replicas:
        raise RuntimeError(
            f"This instance has {replicas} local replicas, but TensorFlow has "
            f"{len(names)} logical CPU, and can have no more once an operation has "
            "run or a device was made. Import popdist.tensorflow before the first "
            f"operation, or make {replicas} logical CPUs with "
            "tf.config.set_logical_device_configuration."
        )
    return names[:replicas]
