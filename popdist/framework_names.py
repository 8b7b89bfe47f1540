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


# The first part of some names; the rest of each, and what fails without them.
_Groups = Mapping[str, Mapping[str, str]]


def _names(groups: _Groups) -> dict[str, str]:
    return {
        f"{first}{rest}": failure
        for first, group in groups.items()
        for names, failure in group.items()
        for rest in names.split(", ")
    }


_UNKNOWN_STRATEGY = "instances train apart without a warning"
_TWO_STRATEGIES = "two strategies are mixed without an error"
_FEWER_REPLICAS = "replicas of other instances are left out"
_OWN_VALUES = "the replicas' variables differ"
_OWN_ROWS = "gathers return the rows of one instance"
_STEPS = "an epoch has a wrong number of steps"
_FILES = "instances write over each other's files"
_MISTAKES = "fit does not report models that instances train apart"
_SAME_DATA = "instances that train with the same data get no warning"
_LOGS = "logs are those of one instance"
_EMPTY = "a replica without data computes NaN, or ends the process"
_SCALES = "replicas skip different steps where gradients overflow"
_GROUPS = "torch.distributed cannot use groups of popdist"

_DISTRIBUTE = "tensorflow.python.distribute."
_TENSORFLOW: _Groups = {
    f"{_DISTRIBUTE}distribute_lib:": {
        "ReplicaContextBase.merge_call": _LOGS,
        "StrategyExtendedV2._scope": _TWO_STRATEGIES,
    },
    f"{_DISTRIBUTE}distribute_utils:": {"create_mirrored_variable": _OWN_VALUES},
    f"{_DISTRIBUTE}input_lib:DistributedIteratorBase.": {
        "get_next, get_next_as_optional": _STEPS,
    },
    f"{_DISTRIBUTE}mirrored_strategy:MirroredExtended.": {
        "_batch_reduce_to, _reduce_to": _UNKNOWN_STRATEGY,
        "_broadcast_to, _call_for_each_replica": _OWN_VALUES,
        "_create_variable": _MISTAKES,
        "_get_variable_creator_initial_value": "variables begin with different values",
        "_distribute_datasets_from_function, _experimental_distribute_dataset": _STEPS,
        "_make_dataset_iterator, _make_input_fn_iterator": _STEPS,
        "_experimental_distribute_values_from_function": _FEWER_REPLICAS,
        "_get_local_replica_id, _num_replicas_in_sync": _FEWER_REPLICAS,
        "_gather_to_implementation": _OWN_ROWS,
        "_get_replica_id_in_sync_group": "instances have the same replicas",
        "_global_batch_size": "batches are divided once more",
        "_update": "a variable of no strategy is an error without its reason",
    },
    f"{_DISTRIBUTE}values:": {
        "DistributedVariable._update": _TWO_STRATEGIES,
        "MirroredVariable._update_replica": _OWN_VALUES,
        "SyncOnReadVariable._gather_saveables_for_checkpoint": (
            "a checkpoint does not restore metrics"
        ),
        "SyncOnReadVariable._get_cross_replica": _LOGS,
        "SyncOnReadVariable._update_replica": _LOGS,
    },
    "tensorflow.python.": {
        "checkpoint.checkpoint:TrackableSaver.save": _FILES,
        "client.session:BaseSession.__init__": "sessions refuse operations for IPUs",
        "eager.polymorphic_function.concrete_function:ConcreteFunction._call_flat": (
            _OWN_VALUES
        ),
        "eager.polymorphic_function.polymorphic_function:Function.__init__"
        "#_jit_compile": (
            "XLA compiles the functions of programs for IPUs, which it cannot"
        ),
        "framework.ops:Graph.__init__#_add_control_dependencies": (
            "computations for IPUs lose side effects in loops"
        ),
        "ops.gen_array_ops:extract_image_patches": _EMPTY,
        "ops.gen_summary_ops:create_summary_file_writer": _FILES,
        "ops.summary_ops_v2:_ResourceSummaryWriter.close": _FILES,
        "saved_model.save:save_and_return_nodes": _FILES,
    },
    # Operations that are compared by their names in graphs.
    "tensorflow._api.v2.raw_ops:": {
        "Assert, ReadVariableOp, VarHandleOp, VarIsInitializedOp": (
            "computations for IPUs run operations without side effects once more"
        ),
        "FixedLengthRecordDatasetV2, TFRecordDataset, TFRecordDatasetV2": _SAME_DATA,
        "TensorSliceDataset, TextLineDataset, Const": _SAME_DATA,
        "EagerPyFunc, GeneratorDataset, PyFunc, PyFuncStateless": (
            "data sets of Python functions are compared, though they may differ"
        ),
    },
    "tensorflow.python.ops.gen_nn_ops:": {
        "conv2d, conv3d, depthwise_conv2d_native": _EMPTY,
        "max_pool, max_pool3d, max_pool_with_argmax": _EMPTY,
    },
}
_KERAS: _Groups = {
    "keras.src.": {
        "backend.tensorflow.optimizer:TFOptimizer.__init__#_distribution_strategy": (
            _MISTAKES
        ),
        "backend.tensorflow.trainer:TFEpochIterator.__init__": _STEPS,
        "layers.normalization.batch_normalization:BatchNormalization._moments": _EMPTY,
        "losses.loss:reduce_values": _EMPTY,
        "models.model:Model.save, models.model:Model.save_weights": _FILES,
        "optimizers.loss_scale_optimizer:LossScaleOptimizer.check_finite": _SCALES,
        "random.seed_generator:SeedGenerator.__init__#seed_generator_state": (
            "all replicas draw the same random numbers"
        ),
        "trainers.data_adapters.array_data_adapter:ArrayDataAdapter.get_tf_dataset": (
            _STEPS
        ),
        "trainers.epoch_iterator:EpochIterator.__init__#_num_batches": _STEPS,
    },
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer.": {
        "__init__#_distribute_strategy, fit": _MISTAKES,
        "_maybe_symbolic_build": "models are built with the mean of batches",
        "evaluate, predict": _STEPS,
        "fit#_initial_epoch": "instances begin with different epochs",
        "make_test_function, make_train_function": _LOGS,
    },
    "keras.src.callbacks.backup_and_restore:BackupAndRestore.": {
        "_save_model, on_train_begin, on_train_end": _FILES,
    },
    "keras.src.callbacks.callback_list:CallbackList.": {
        "on_epoch_end, on_train_batch_end, on_train_begin": _MISTAKES,
    },
}
_TF_KERAS: _Groups = {
    "tf_keras.src.callbacks:CallbackList.": {
        "on_epoch_end, on_train_batch_end, on_train_begin": _MISTAKES,
    },
    "tf_keras.src.engine.data_adapter:DataHandler.": {
        "__init__#_steps_per_epoch": _STEPS,
        "_configure_dataset_and_inferred_steps": _STEPS,
        "_configure_dataset_and_inferred_steps#_inferred_steps": _STEPS,
    },
    "tf_keras.src.engine.training:Model.": {
        "__init__#_distribution_strategy, fit": _MISTAKES,
        "evaluate, predict": _STEPS,
        "make_test_function, make_train_function": _LOGS,
        "save, save_weights": _FILES,
    },
    "tf_keras.src.mixed_precision.loss_scale_optimizer:": {
        "LossScaleOptimizer.apply_gradients": _SCALES,
        "LossScaleOptimizerV3.apply_gradients": _SCALES,
        "_multiply_gradient": "Horovod reduces gradients twice",
        "strategy_supports_loss_scaling": "PopDistStrategy cannot scale losses",
    },
    "tf_keras.src.optimizers.legacy.optimizer_v2:OptimizerV2.": {
        "_compute_gradients": "Horovod's optimizers do not reduce",
        "_create_all_weights": "Horovod's optimizers make variables within a branch",
        "_prepare": "schedules count a step once for each replica",
    },
}
_TORCH: _Groups = {
    "torch.distributed.distributed_c10d:": {
        "_new_process_group_helper, monitored_barrier": _GROUPS,
    },
    "torch._C._distributed_c10d:": {"Work._source_rank": _GROUPS},
    "torch._C._nn:": {
        "max_pool2d_with_indices, max_pool3d_with_indices": (
            "PopTorch warns of int64 in a model that only has pooling"
        ),
    },
    "torch._C._distributed_c10d:ProcessGroup.": {
        "_device_types, _get_backend, _get_backend_name": _GROUPS,
        "_get_sequence_number_for_group, _set_group_desc, _set_group_name": _GROUPS,
    },
    "torch.": {
        "nn.modules.batchnorm:_NormBase._check_input_dim": (
            "Horovod's SyncBatchNorm does not check its input"
        ),
        "utils.data._utils.worker:_worker_info": (
            "PopTorch's worker loads less than /dev/shm has room for"
        ),
    },
    "torch.utils.data.dataloader:": {
        "DataLoader._get_iterator": (
            "PopTorch's DataLoader loads data without its options"
        ),
        "DataLoader.__iter__#_iterator": (
            "PopTorch's loading ahead leaves its worker no core"
        ),
        "_MultiProcessingDataLoaderIter.__init__#_workers": (
            "a program that PopTorch's worker cannot import gets no advice"
        ),
    },
}
TENSORFLOW = FrameworkNames("tensorflow", "2.21", _names(_TENSORFLOW))
KERAS = FrameworkNames("keras", "3.12 to 3.15", _names(_KERAS))
TF_KERAS = FrameworkNames("tf_keras", "2.21", _names(_TF_KERAS))
TORCH = FrameworkNames("torch", "2.10 to 2.15", _names(_TORCH))
