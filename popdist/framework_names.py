"""The names of TensorFlow, Keras and torch that popdist replaces or overrides.

If a framework renames one of them, popdist's part is not called any more, and no other
error says so. Each table is checked when popdist and its framework are both imported.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import unwrap
from typing import Any


@dataclass(frozen=True, slots=True)
class FrameworkNames:
    """The names of one framework.

    package: The framework.
    tried: The versions that popdist was tried with. pyproject.toml has the same bounds.
    names: What fails without each name. A name is "module:function" or
        "module:Class.method". "module:Class.method#word" is an attribute, an argument
        or a text in the code of a function.
    """

    package: str
    tried: str
    names: Mapping[str, str]

    def check(self) -> None:
        """Look for each name in the modules that are imported.

        Raises:
            ImportError: The framework has no such name.
        """
        for name in self.names:
            self.check_name(name)

    def check_name(self, name: str) -> None:
        """Look for one name of the table.

        Raises:
            ImportError: The framework has no such name.
        """
        if not _exists(name):
            raise self.missing(name, self.names[name])

    def missing(self, name: str, failure: str) -> ImportError:
        """Return the error on a name that the framework does not have."""
        version = sys.modules[self.package].__version__
        return ImportError(
            f"popdist needs {name}, which {self.package} {version} does not have. "
            f"Without it, {failure}. Install {self.package} {self.tried}, with which "
            "popdist was tried.",
            name=name.partition(":")[0],
        )


def _exists(name: str) -> bool:
    place, _, word = name.partition("#")
    module_name, _, path = place.partition(":")
    if module_name not in sys.modules:
        return _is_module(module_name)
    # Any: frameworks have attributes of many types.
    found: Any = sys.modules[module_name]
    for part in path.split("."):
        # An inherited method is not enough: popdist relies on the class's own.
        if part not in vars(found):
            return False
        found = vars(found)[part]
    return not word or _mentions(unwrap(found).__code__, word)


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


# Any: the type of code objects has no name but in `types`.
def _mentions(code: Any, word: str) -> bool:
    return word in (*code.co_names, *code.co_varnames, *code.co_consts) or any(
        isinstance(constant, tuple) and word in constant for constant in code.co_consts
    )


_UNKNOWN_STRATEGY = "instances train apart without a warning"
_FEWER_REPLICAS = "replicas of other instances are left out"
_OWN_VALUES = "the replicas' variables differ"
_STEPS = "an epoch has a wrong number of steps"
_FILES = "instances write over each other's files"
_MISTAKES = "fit does not report models that instances train apart"
_LOGS = "logs are those of one instance"
_EMPTY = "a replica without data computes NaN, or ends the process"
_SCALES = "replicas skip different steps where gradients overflow"
_GROUPS = "torch.distributed cannot use groups of popdist"

_DISTRIBUTE = "tensorflow.python.distribute."
_MIRRORED = f"{_DISTRIBUTE}mirrored_strategy:MirroredExtended."
_CROSS_DEVICE = f"{_DISTRIBUTE}cross_device_ops:CrossDeviceOps."
_FUNCTION = "tensorflow.python.eager.polymorphic_function."
TENSORFLOW = FrameworkNames(
    "tensorflow",
    "2.21",
    {
        f"{_DISTRIBUTE}distribute_lib:ReplicaContextBase.merge_call": _LOGS,
        f"{_DISTRIBUTE}distribute_lib:StrategyExtendedV2._scope": (
            "two strategies are mixed without an error"
        ),
        f"{_CROSS_DEVICE}_gather": "gathers return the rows of one instance",
        f"{_CROSS_DEVICE}_gather_implementation": (
            "gathers return the rows of one instance"
        ),
        f"{_CROSS_DEVICE}_num_between_graph_workers": _UNKNOWN_STRATEGY,
        f"{_DISTRIBUTE}input_lib:DistributedIteratorBase.get_next": _STEPS,
        f"{_DISTRIBUTE}input_lib:DistributedIteratorBase.get_next_as_optional": _STEPS,
        f"{_MIRRORED}_batch_reduce_to": _UNKNOWN_STRATEGY,
        f"{_MIRRORED}_broadcast_to": _OWN_VALUES,
        f"{_MIRRORED}_call_for_each_replica": _OWN_VALUES,
        f"{_MIRRORED}_create_variable": "variables begin with different values",
        f"{_MIRRORED}_distribute_datasets_from_function": _STEPS,
        f"{_MIRRORED}_experimental_distribute_dataset": _STEPS,
        f"{_MIRRORED}_experimental_distribute_values_from_function": _FEWER_REPLICAS,
        f"{_MIRRORED}_gather_to_implementation": (
            "gathers return the rows of one instance"
        ),
        f"{_MIRRORED}_get_cross_device_ops": _UNKNOWN_STRATEGY,
        f"{_MIRRORED}_get_local_replica_id": _FEWER_REPLICAS,
        f"{_MIRRORED}_get_replica_id_in_sync_group": "instances have the same replicas",
        f"{_MIRRORED}_global_batch_size": "batches are divided once more",
        f"{_MIRRORED}_make_dataset_iterator": _STEPS,
        f"{_MIRRORED}_make_input_fn_iterator": _STEPS,
        f"{_MIRRORED}_num_replicas_in_sync": _FEWER_REPLICAS,
        f"{_MIRRORED}_reduce_to": _UNKNOWN_STRATEGY,
        f"{_MIRRORED}_update": (
            "a variable of no strategy is an error without its reason"
        ),
        f"{_DISTRIBUTE}values:DistributedVariable._update": (
            "two strategies are mixed without an error"
        ),
        f"{_DISTRIBUTE}values:MirroredVariable._update_replica": _OWN_VALUES,
        f"{_DISTRIBUTE}values:SyncOnReadVariable._gather_saveables_for_checkpoint": (
            "a checkpoint does not restore metrics"
        ),
        f"{_DISTRIBUTE}values:SyncOnReadVariable._get_cross_replica": _LOGS,
        f"{_DISTRIBUTE}values:SyncOnReadVariable._update_replica": _LOGS,
        f"{_FUNCTION}concrete_function:ConcreteFunction._call_flat": _OWN_VALUES,
        f"{_FUNCTION}polymorphic_function:Function.__init__#_jit_compile": (
            "XLA compiles the functions of programs for IPUs, which it cannot"
        ),
        "tensorflow.python.checkpoint.checkpoint:TrackableSaver.save": _FILES,
        "tensorflow.python.client.session:BaseSession.__init__": (
            "sessions refuse operations for IPUs"
        ),
        "tensorflow.python.framework.ops:Graph.__init__#_add_control_dependencies": (
            "computations for IPUs lose side effects in loops"
        ),
        "tensorflow.python.ops.gen_array_ops:extract_image_patches": _EMPTY,
        "tensorflow.python.ops.gen_nn_ops:conv2d": _EMPTY,
        "tensorflow.python.ops.gen_nn_ops:conv3d": _EMPTY,
        "tensorflow.python.ops.gen_nn_ops:max_pool": _EMPTY,
        "tensorflow.python.ops.gen_nn_ops:max_pool3d": _EMPTY,
        "tensorflow.python.ops.gen_nn_ops:max_pool_with_argmax": _EMPTY,
        "tensorflow.python.ops.gen_summary_ops:create_summary_file_writer": _FILES,
        "tensorflow.python.ops.summary_ops_v2:_ResourceSummaryWriter.close": _FILES,
        "tensorflow.python.saved_model.save:save_and_return_nodes": _FILES,
    },
)

_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer."
_CALLBACKS = "keras.src.callbacks."
_BACKUP = f"{_CALLBACKS}backup_and_restore:BackupAndRestore."
KERAS = FrameworkNames(
    "keras",
    "3.12 to 3.15",
    {
        "keras.src.backend.tensorflow.optimizer:TFOptimizer.__init__"
        "#_distribution_strategy": _MISTAKES,
        "keras.src.backend.tensorflow.trainer:TFEpochIterator.__init__": _STEPS,
        f"{_TRAINER}__init__#_distribute_strategy": _MISTAKES,
        f"{_TRAINER}_maybe_symbolic_build": "models are built with the mean of batches",
        f"{_TRAINER}evaluate": _STEPS,
        f"{_TRAINER}fit": _MISTAKES,
        f"{_TRAINER}fit#_initial_epoch": "instances begin with different epochs",
        f"{_TRAINER}make_test_function": _LOGS,
        f"{_TRAINER}make_train_function": _LOGS,
        f"{_TRAINER}predict": _STEPS,
        f"{_BACKUP}_save_model": _FILES,
        f"{_BACKUP}on_train_begin": _FILES,
        f"{_BACKUP}on_train_end": _FILES,
        f"{_CALLBACKS}callback_list:CallbackList.on_epoch_end": _MISTAKES,
        f"{_CALLBACKS}callback_list:CallbackList.on_train_batch_end": _MISTAKES,
        f"{_CALLBACKS}callback_list:CallbackList.on_train_begin": _MISTAKES,
        "keras.src.layers.normalization.batch_normalization:"
        "BatchNormalization._moments": _EMPTY,
        "keras.src.losses.loss:reduce_values": _EMPTY,
        "keras.src.models.model:Model.save": _FILES,
        "keras.src.models.model:Model.save_weights": _FILES,
        "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer.check_finite": (
            _SCALES
        ),
        "keras.src.random.seed_generator:SeedGenerator.__init__"
        "#seed_generator_state": "all replicas draw the same random numbers",
        "keras.src.trainers.data_adapters.array_data_adapter:"
        "ArrayDataAdapter.get_tf_dataset": _STEPS,
        "keras.src.trainers.epoch_iterator:EpochIterator.__init__#_num_batches": _STEPS,
    },
)

_TF_MODEL = "tf_keras.src.engine.training:Model."
_TF_HANDLER = "tf_keras.src.engine.data_adapter:DataHandler."
_TF_SCALING = "tf_keras.src.mixed_precision.loss_scale_optimizer:"
_TF_OPTIMIZER = "tf_keras.src.optimizers.legacy.optimizer_v2:OptimizerV2."
TF_KERAS = FrameworkNames(
    "tf_keras",
    "2.21",
    {
        "tf_keras.src.callbacks:CallbackList.on_epoch_end": _MISTAKES,
        "tf_keras.src.callbacks:CallbackList.on_train_batch_end": _MISTAKES,
        "tf_keras.src.callbacks:CallbackList.on_train_begin": _MISTAKES,
        f"{_TF_HANDLER}__init__#_steps_per_epoch": _STEPS,
        f"{_TF_HANDLER}_configure_dataset_and_inferred_steps": _STEPS,
        f"{_TF_HANDLER}_configure_dataset_and_inferred_steps#_inferred_steps": _STEPS,
        f"{_TF_MODEL}__init__#_distribution_strategy": _MISTAKES,
        f"{_TF_MODEL}evaluate": _STEPS,
        f"{_TF_MODEL}fit": _MISTAKES,
        f"{_TF_MODEL}make_test_function": _LOGS,
        f"{_TF_MODEL}make_train_function": _LOGS,
        f"{_TF_MODEL}predict": _STEPS,
        f"{_TF_MODEL}save": _FILES,
        f"{_TF_MODEL}save_weights": _FILES,
        f"{_TF_SCALING}LossScaleOptimizer.apply_gradients": _SCALES,
        f"{_TF_SCALING}LossScaleOptimizerV3.apply_gradients": _SCALES,
        f"{_TF_SCALING}_multiply_gradient": "Horovod reduces gradients twice",
        f"{_TF_SCALING}strategy_supports_loss_scaling": (
            "PopDistStrategy cannot scale losses"
        ),
        f"{_TF_OPTIMIZER}_compute_gradients": "Horovod's optimizers do not reduce",
        f"{_TF_OPTIMIZER}_create_all_weights": (
            "Horovod's optimizers make variables within a branch"
        ),
        f"{_TF_OPTIMIZER}_prepare": "schedules count a step once for each replica",
    },
)

_C10D = "torch.distributed.distributed_c10d:"
_GROUP = "torch._C._distributed_c10d:ProcessGroup."
_LOADER = "torch.utils.data.dataloader:"
TORCH = FrameworkNames(
    "torch",
    "2.10 to 2.15",
    {
        f"{_C10D}_new_process_group_helper": _GROUPS,
        f"{_C10D}monitored_barrier": _GROUPS,
        f"{_GROUP}_device_types": _GROUPS,
        f"{_GROUP}_get_backend": _GROUPS,
        f"{_GROUP}_get_backend_name": _GROUPS,
        f"{_GROUP}_get_sequence_number_for_group": _GROUPS,
        f"{_GROUP}_set_group_desc": _GROUPS,
        f"{_GROUP}_set_group_name": _GROUPS,
        "torch._C._distributed_c10d:Work._source_rank": _GROUPS,
        "torch.nn.modules.batchnorm:_NormBase._check_input_dim": (
            "Horovod's SyncBatchNorm does not check its input"
        ),
        f"{_LOADER}DataLoader._get_iterator": (
            "PopTorch's DataLoader loads data without its options"
        ),
        f"{_LOADER}DataLoader.__iter__#_iterator": (
            "PopTorch's loading ahead leaves its worker no core"
        ),
        f"{_LOADER}_MultiProcessingDataLoaderIter.__init__#_workers": (
            "a program that PopTorch's worker cannot import gets no advice"
        ),
        "torch.utils.data._utils.worker:_worker_info": (
            "PopTorch's worker loads less than /dev/shm has room for"
        ),
    },
)
