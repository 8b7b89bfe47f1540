"""PopDistStrategy: tf.distribute's data parallelism among all replicas of the job."""

from typing import Any

import tensorflow as tf

import popdist
from popdist.replicated.members import Members
from popdist.session import STATE
from popdist.tensorflow.devices import local_devices
from popdist.tensorflow.ipu_config import set_ipu_config
from popdist.tensorflow.strategy import (  # noqa: F401  (they extend TensorFlow)
    empty_batches,
    iterators,
    keras_checks,
    keras_steps,
    learning_rates,
    loss_scaling,
    saving,
)
from popdist.tensorflow.strategy.cross_device import EngineCrossDeviceOps
from popdist.tensorflow.strategy.exchange import Exchange
from popdist.tensorflow.strategy.extended import PopDistExtended


class PopDistStrategy(tf.distribute.Strategy):
    """Synchronous data-parallel training on all replicas of the job.

    The replicas of an instance are logical CPUs. Variables that are created in its
    scope begin with the values of instance 0, and collectives are popdist's. All
    instances must create a strategy, and make the same calls in the same order.
    """

    # The first number of MirroredStrategy's collectives; none of them is made.
    _collective_key_base = 0

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        add_ipu_cross_replica_reductions: bool = True,
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        """Initialise PopDist's backend, and meet the other instances.

        Args:
            ipu_device: The name of an IPU; each local replica has a logical CPU.
            add_ipu_cross_replica_reductions: Whether what replicas all-reduce in a run
                is reduced, as optimizers do with gradients. Programs that add up
                gradients themselves, as by CrossReplicaOptimizer, give False.
            enable_dataset_iterators: TensorFlow's own iterators feed the replicas in
                either case, as there are no infeeds.
            enable_keras_extensions: Whether Keras counts the steps of an epoch right
                where local replicas take a batch each.

        Raises:
            RuntimeError: TensorFlow has fewer devices than there are local replicas.
            ValueError: The device is no IPU.
        """
        if "IPU" not in ipu_device.upper():
            raise ValueError(
                f"ipu_device is {ipu_device!r}, but names no IPU. Leave it out: each "
                "local replica has a logical CPU."
            )
        popdist.init()
        devices = local_devices()
        members = Members.meet("tensorflow", len(devices), {})
        group = STATE.group("tensorflow", STATE.job.members)
        engine = EngineCrossDeviceOps(Exchange.among(group), devices)
        extended = PopDistExtended(
            self, devices, members, engine, add_ipu_cross_replica_reductions
        )
        extended.extends_keras = enable_keras_extensions
        super().__init__(extended)

    def shard_datasets(self, shard: bool = True) -> None:
        """Let data sets that are distributed from now on be sharded by instance.

        Without it the program shards them itself. Batches are whole in either case:
        each local replica takes one.
        """
        self.extended.shards_datasets = shard

    def update_ipu_config(self, config: Any) -> Any:
        """Set in a configuration how many instances there are, and which this is."""
        return set_ipu_config(config, configure_device=False)

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Return the reduction of a value over all replicas, and along an axis.

        The axis may be left out, as in strategies of TensorFlow 1.
        """
        return super().reduce(reduce_op, value, axis)

    def experimental_run_v2(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a function on all replicas: run() under its earlier name."""
        return self.run(fn, *args, **kwargs)
