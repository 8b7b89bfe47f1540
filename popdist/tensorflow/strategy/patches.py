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

_DISTRIBUTE = "tensorflow.python.distribute"
_OPS = "tensorflow.python.ops"
_KERAS_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer"
_TF_KERAS_MODEL = "tf_keras.src.engine.training:Model"
_CALLBACK_LISTS = (
    "keras.src.callbacks.callback_list:CallbackList",
    "tf_keras.src.callbacks:CallbackList",
)
_BACKUP = "keras.src.callbacks.backup_and_restore:BackupAndRestore"

_check_fit = partial(keras_checks.checked_fit, PopDistExtended.is_without_model)
_mean_logs = partial(keras_logs.make_step, tf.distribute.ReduceOp.MEAN)
_sum_logs = partial(keras_logs.make_step, tf.distribute.ReduceOp.SUM)
_save_model = partial(saved, Saver.save_model)
_save_folder = partial(saved, Saver.save_folder)
_back_up = partial(saved, Saver.back_up)

# They are called with the class of strategies, the function and its arguments.
_OF_STRATEGIES: dict[str, Callable[..., Any]] = {
    f"{_DISTRIBUTE}.input_lib:DistributedIteratorBase.get_next": iterators.get_next,
    f"{_DISTRIBUTE}.input_lib:DistributedIteratorBase.get_next_as_optional": (
        iterators.get_next_as_optional
    ),
    f"{_DISTRIBUTE}.distribute_lib:ReplicaContextBase.merge_call": (
        keras_logs.record_merged
    ),
    "tensorflow.python.eager.polymorphic_function.concrete_function:"
    "ConcreteFunction._call_flat": call_recorded,
    f"{_OPS}.gen_nn_ops:conv2d": empty_batches.with_a_row,
    f"{_OPS}.gen_nn_ops:conv3d": empty_batches.with_a_row,
    f"{_OPS}.gen_nn_ops:max_pool": empty_batches.with_a_row,
    f"{_OPS}.gen_nn_ops:max_pool3d": empty_batches.with_a_row,
    f"{_OPS}.gen_nn_ops:max_pool_with_argmax": empty_batches.with_a_row,
    f"{_OPS}.gen_array_ops:extract_image_patches": empty_batches.with_a_row,
    "keras.src.layers.normalization.batch_normalization:BatchNormalization._moments": (
        empty_batches.moments_of_rows
    ),
    "keras.src.losses.loss:reduce_values": empty_batches.loss_of_rows,
    "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer.check_finite": (
        finite_on_all
    ),
    "tf_keras.src.mixed_precision.loss_scale_optimizer:"
    "strategy_supports_loss_scaling": supports_loss_scaling,
    "tf_keras.src.optimizers.legacy.optimizer_v2:OptimizerV2._prepare": prepare_once,
    "keras.src.backend.tensorflow.trainer:TFEpochIterator.__init__": (
        keras_steps.make_epoch_iterator
    ),
    "keras.src.trainers.data_adapters.array_data_adapter:"
    "ArrayDataAdapter.get_tf_dataset": keras_steps.dataset_of_arrays,
    "tf_keras.src.engine.data_adapter:"
    "DataHandler._configure_dataset_and_inferred_steps": keras_steps.configure_steps,
    f"{_KERAS_TRAINER}._maybe_symbolic_build": keras_steps.build_with_batch,
    f"{_KERAS_TRAINER}.make_train_function": _mean_logs,
    f"{_KERAS_TRAINER}.make_test_function": _mean_logs,
    f"{_TF_KERAS_MODEL}.make_train_function": _sum_logs,
    f"{_TF_KERAS_MODEL}.make_test_function": _sum_logs,
    f"{_KERAS_TRAINER}.fit": _check_fit,
    f"{_TF_KERAS_MODEL}.fit": _check_fit,
    **{f"{each}.on_train_begin": keras_checks.begin_alike for each in _CALLBACK_LISTS},
    **{
        f"{each}.on_train_batch_end": keras_checks.stop_alike
        for each in _CALLBACK_LISTS
    },
    **{f"{each}.on_epoch_end": keras_checks.decide_alike for each in _CALLBACK_LISTS},
}
# They are called with the function and its arguments, whatever the strategy is.
_OF_INSTANCES: dict[str, Callable[..., Any]] = {
    "keras.src.models.model:Model.save": _save_model,
    "keras.src.models.model:Model.save_weights": _save_model,
    f"{_TF_KERAS_MODEL}.save": _save_model,
    f"{_TF_KERAS_MODEL}.save_weights": _save_model,
    "tensorflow.python.checkpoint.checkpoint:TrackableSaver.save": _save_folder,
    "tensorflow.python.saved_model.save:save_and_return_nodes": _save_folder,
    f"{_BACKUP}._save_model": _back_up,
    f"{_BACKUP}.on_train_begin": _back_up,
    f"{_BACKUP}.on_train_end": _back_up,
    f"{_OPS}.gen_summary_ops:create_summary_file_writer": summaries.create_writer,
    f"{_OPS}.summary_ops_v2:_ResourceSummaryWriter.close": summaries.close_writer,
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
