"""The functions of TensorFlow and Keras that strategies extend, with their extensions.

popdist.framework_names says what fails without each of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from popdist.tensorflow.extending import extend
from popdist.tensorflow.strategy import (
    empty_batches,
    iterators,
    keras_checks,
    keras_logs,
    keras_steps,
    summaries,
)
from popdist.tensorflow.strategy.aggregation import call_recorded
from popdist.tensorflow.strategy.extended import PopDistExtended
from popdist.tensorflow.strategy.learning_rates import prepare_once
from popdist.tensorflow.strategy.loss_scaling import (
    finite_on_all,
    supports_loss_scaling,
)
from popdist.tensorflow.strategy.saving import Saver, saved

_check_fit = partial(keras_checks.checked_fit, PopDistExtended.is_without_model)
_mean_logs = partial(keras_logs.make_step, tf.distribute.ReduceOp.MEAN)
_sum_logs = partial(keras_logs.make_step, tf.distribute.ReduceOp.SUM)
_save_model = partial(saved, Saver.save_model)
_save_folder = partial(saved, Saver.save_folder)
_back_up = partial(saved, Saver.back_up)

# They are called with the class of strategies, the function and its arguments.
_OF_STRATEGIES: dict[str, Callable[..., Any]] = {
    "DistributedIteratorBase.get_next": iterators.get_next,
    "DistributedIteratorBase.get_next_as_optional": iterators.get_next_as_optional,
    "ReplicaContextBase.merge_call": keras_logs.record_merged,
    "ConcreteFunction._call_flat": call_recorded,
    "conv2d": empty_batches.with_a_row,
    "conv3d": empty_batches.with_a_row,
    "max_pool": empty_batches.with_a_row,
    "max_pool3d": empty_batches.with_a_row,
    "max_pool_with_argmax": empty_batches.with_a_row,
    "extract_image_patches": empty_batches.with_a_row,
    "BatchNormalization._moments": empty_batches.moments_of_rows,
    "reduce_values": empty_batches.loss_of_rows,
    "LossScaleOptimizer.check_finite": finite_on_all,
    "strategy_supports_loss_scaling": supports_loss_scaling,
    "OptimizerV2._prepare": prepare_once,
    "TFEpochIterator.__init__": keras_steps.make_epoch_iterator,
    "ArrayDataAdapter.get_tf_dataset": keras_steps.dataset_of_arrays,
    "DataHandler._configure_dataset_and_inferred_steps": keras_steps.configure_steps,
    # TensorFlowTrainer is of Keras 3, and Model of tf_keras.
    "TensorFlowTrainer._maybe_symbolic_build": keras_steps.build_with_batch,
    "TensorFlowTrainer.make_train_function": _mean_logs,
    "TensorFlowTrainer.make_test_function": _mean_logs,
    "TensorFlowTrainer.fit": _check_fit,
    "Model.make_train_function": _sum_logs,
    "Model.make_test_function": _sum_logs,
    "Model.fit": _check_fit,
    "CallbackList.on_train_begin": keras_checks.begin_alike,
    "CallbackList.on_train_batch_end": keras_checks.stop_alike,
    "CallbackList.on_epoch_end": keras_checks.decide_alike,
}
# They are called with the function and its arguments, whatever the strategy is.
_OF_INSTANCES: dict[str, Callable[..., Any]] = {
    "Model.save": _save_model,
    "Model.save_weights": _save_model,
    "TrackableSaver.save": _save_folder,
    "save_and_return_nodes": _save_folder,
    "BackupAndRestore._save_model": _back_up,
    "BackupAndRestore.on_train_begin": _back_up,
    "BackupAndRestore.on_train_end": _back_up,
    "create_summary_file_writer": summaries.create_writer,
    "_ResourceSummaryWriter.close": summaries.close_writer,
}


def apply_patches(strategy_class: type[Any]) -> None:
    """Extend what TensorFlow and both Kerases do, once they are imported.

    Args:
        strategy_class: The class of strategies under which they behave otherwise.
    """
    for name, around in _OF_STRATEGIES.items():
        extend(name, partial(around, strategy_class))
    for name, around in _OF_INSTANCES.items():
        extend(name, around)
