"""Each name that public programs use works, or refuses in words."""

import os
import subprocess
import sys
from importlib.util import find_spec
from operator import attrgetter

import pytest
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.python.ipu.horovod import ipu_multi_replica_strategy, popdist_strategy

# Names of the original as programs spell them, by how often they do.
WORKING = """
ipu_outfeed_queue.IPUOutfeedQueue config.IPUConfig ipu_infeed_queue.IPUInfeedQueue
scopes.ipu_scope utils.move_variable_initialization_to_cpu ipu_compiler.compile
loops.repeat ipu_strategy.IPUStrategy ops.pipelining_ops.OptimizerFunctionOutput
ops.pipelining_ops.pipeline ops.cross_replica_ops.cross_replica_sum
utils.reset_ipu_seed utils.DeviceConnectionType.ON_DEMAND distributed.broadcast
test_utils.test_uses_ipus ops.cross_replica_ops.cross_replica_mean
distributed.allreduce config.DeviceConnectionType.PRE_COMPILE
distributed.popdist_strategy.PopDistStrategy
distributed.popdist_strategy.IPUMirroredVariable
distributed.popdist_strategy.IPUSyncOnReadVariable ipu_infeed_queue.IPUOwnedIterator
ipu_multi_worker_strategy.IPUSyncOnReadVariable
pipelining_ops.PipelineStageOptions config.SchedulingAlgorithm
ops.pipelining_ops.PipelineSchedule dataset_benchmark.dataset_benchmark
config.reset_ipu_configuration distributed.host_collective_ops.broadcast
config.StochasticRoundingBehaviour.from_bool distributed.allgather nn_ops.swish
config.SchedulingAlgorithm.LOOK_AHEAD config.SchedulingAlgorithm.CHOOSE_BEST
distributed.host_collective_ops.allreduce distributed.host_collective_ops.allgather
config.configure_ipu_system config.get_ipu_config config.SelectionOrder.SNAKE
config.MergeRemoteBuffersBehaviour config.ExecutionProfileType utils.create_ipu_config
utils.auto_select_ipus utils.select_ipus utils.configure_ipu_system
utils.set_compilation_options utils.set_convolution_options utils.set_matmul_options
utils.set_floating_point_behaviour_options utils.set_recomputation_options
utils.set_optimization_options utils.set_ipu_model_options utils.set_norm_options
utils.set_ipu_connection_type utils.set_report_options utils.get_ipu_config
utils.set_experimental_multi_replica_distribution_options utils.SelectionOrder
utils.set_serialization_options utils.set_gcl_options utils.set_io_tile_options
utils.set_pooling_options utils.set_transfer_options utils.running_on_ipu_model
utils.get_num_of_ipus_in_device utils.ExecutionProfileType scopes.ipu_shard
scopes.outside_compilation_scope scopes.partials_type scopes.stochastic_rounding
scopes.frontend_attribute scopes.ipu_jit_scope loops.while_loop
ipu_outfeed_queue.IPUOutfeedMode.LAST ipu_strategy.IPUStrategyV1
pipelining_ops.RecomputationMode pipelining_ops.recomputation_checkpoint
optimizers.CrossReplicaOptimizer optimizers.GradientAccumulationOptimizer
optimizers.GradientAccumulationOptimizerV2 optimizers.MapGradientOptimizer
optimizers.CrossReplicaGradientAccumulationOptimizer optimizers.ShardedOptimizer
optimizers.CrossReplicaGradientAccumulationOptimizerV2 optimizers.IpuOptimizer
gradient_accumulation.GradientAccumulationReductionMethod
gradient_accumulation_optimizer.GradientAccumulationOptimizerV2
cross_replica_optimizer.CrossReplicaOptimizer sharded_optimizer.ShardedOptimizer
map_gradient_optimizer.MapGradientOptimizer nn_ops.gelu nn_ops.multi_conv
nn_ops.hard_sigmoid nn_ops.softmax nn_ops.ctc_loss_v2 rand_ops.dropout
normalization_ops.group_norm normalization_ops.layer_norm
normalization_ops.instance_norm embedding_ops.embedding_lookup
math_ops.serialized_matmul math_ops.segment_sum functional_ops.outlined_function
outlined_function internal_ops.print_tensor internal_ops.remap
image_ops.normalise_image control_flow_ops.barrier
replication_ops.assume_equal_across_replicas all_to_all_op.all_gather
reduce_scatter_op.reduce_scatter dataset_benchmark.infeed_benchmark
rnn_ops.PopnnLSTM rnn_ops.PopnnGRU rnn_ops.PopnnDynamicLSTM rnn_ops.PopnnDynamicGRU
rnn_ops.PopnnAUGRU keras.PipelineModel keras.PipelineSequential
autoshard.automatic_sharding test_utils.skip_on_hw keras.PipelineStage
keras.Sequential keras.Model keras.optimizers.CrossReplicaOptimizer
keras.optimizers.GradientAccumulationOptimizer layers.LSTM keras.layers.GRU
keras.layers.Embedding keras.layers.GroupNormalization keras.layers.Dropout
keras.layers.LayerNormalization keras.layers.InstanceNormalization
keras.layers.RecomputationCheckpoint keras.layers.SerialDense
keras.layers.AssumeEqualAcrossReplicas utils.IPUConfig
embedding_ops.HostEmbeddingOptimizerSpec embedding_ops.create_host_embedding
embedding_ops.HostEmbeddingSGDGAOptimizerSpec embedding_ops.HostEmbedding
pipelining_ops._ALL_DEVICES sharding.propagate_sharding
replication_ops.replication_index slicing_ops.sequence_slice_pack
statistics_ops.histogram_update test_utils.create_multi_increasing_dataset
test_utils.create_dual_increasing_dataset test_utils.create_single_increasing_dataset
ipu_session_run_hooks.IPULoggingTensorHook.LoggingMode.LAST
"""
REFUSED = """
embedded_runtime.embedded_runtime_start embedded_runtime.embedded_runtime_call
application_compile_op.experimental_application_compile_op
ops.embedded_runtime.RuntimeContext
ipu_multi_worker_strategy.IPUMultiWorkerStrategy
distributed.ipu_horovod_strategy.IPUHorovodStrategy ipu_estimator.IPUEstimator
ipu_estimator.IPUEstimatorSpec ipu_pipeline_estimator.IPUPipelineEstimator
ipu_pipeline_estimator.IPUPipelineEstimatorSpec ipu_run_config.IPURunConfig
ipu_run_config.RunConfig ipu_session_run_hooks.IPULoggingTensorHook
serving.export_keras summary_ops.get_ipu_reports
summary_ops.ipu_compile_summary within_replica_ops.all_gather
internal_ops.get_current_iteration_counter
all_to_all_op.all_to_all utils.extract_compile_reports utils.export_dataset_to_file
optimizers.AutomaticLossScalingOptimizer keras.optimizers.ALSOptimizer
keras.layers.EffectiveTransformer keras.layers.CTCInferenceLayer
"""


@pytest.mark.parametrize("name", WORKING.split())
def test_a_name_that_programs_use_exists(name: str) -> None:
    assert attrgetter(name)(ipu) is not None


def test_the_strategy_has_its_earlier_name_too() -> None:
    strategy = ipu.distributed.popdist_strategy.PopDistStrategy

    assert ipu_multi_replica_strategy.IPUMultiReplicaStrategy is strategy
    assert popdist_strategy.IPUMultiReplicaStrategy is strategy


@pytest.mark.parametrize("name", REFUSED.split())
def test_a_name_that_cannot_work_refuses_in_words(name: str) -> None:
    last = name.rpartition(".")[2]

    with pytest.raises(NotImplementedError) as refusal:
        attrgetter(name)(ipu)("any", argument=1)

    assert f"stand-in for tensorflow.python.ipu has no {last}: " in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_a_class_that_cannot_work_has_no_subclasses() -> None:
    with pytest.raises(NotImplementedError, match="has no IPUEstimator"):

        class Mine(ipu.ipu_estimator.IPUEstimator):
            pass


def test_a_name_that_the_original_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        _ = ipu.no_such
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        _ = ipu.keras.no_such


def test_modules_can_be_imported_by_their_names() -> None:
    from tensorflow.python.ipu import pipelining_ops
    from tensorflow.python.ipu.ops.pipelining_ops import pipeline

    assert pipelining_ops.pipeline is pipeline


KERAS_NAMES = """
from tensorflow.python import ipu
from tensorflow import keras
with keras.ipu.PipelineStage(0): pass
from tensorflow.keras import ipu as first
from tensorflow.keras.ipu import PipelineStage
from tensorflow.keras.ipu.layers import Embedding
from keras import ipu as second
from keras.ipu.models import Model
from keras.ipu.optimizers import ALSOptimizer
import keras.ipu.layers, tf_keras.ipu.layers
import tensorflow as tf, tf_keras
assert first is second is tf.keras.ipu is tf_keras.ipu is ipu.keras
assert PipelineStage is ipu.keras.PipelineStage
assert Embedding is ipu.keras.layers.Embedding
assert Model is ipu.keras.Model
assert keras.ipu.layers is tf_keras.ipu.layers is ipu.keras.layers
"""


@pytest.mark.parametrize("legacy", ["0", "1"])
def test_keras_has_the_package_by_the_name_that_graphcores_keras_has(
    legacy: str,
) -> None:
    program = "import popdist.sdk; popdist.sdk.install()\n" + KERAS_NAMES
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "TF_USE_LEGACY_KERAS": legacy},
        check=True,
        timeout=280,
    )


@pytest.mark.parametrize(
    "name",
    ["ipu_estimator", "ops.summary_ops", "serving", "distributed.host_collective_ops"],
)
def test_modules_that_have_no_file_can_be_looked_for(name: str) -> None:
    assert find_spec(f"tensorflow.python.ipu.{name}") is not None


def test_the_operations_of_the_plugin_can_be_imported() -> None:
    """Programs import gen_ipu_ops at their top, and use it where they profile."""
    from tensorflow.compiler.plugin.poplar.ops import gen_ipu_ops, gen_poputil_ops

    normalised = gen_poputil_ops.ipu_replication_normalise(tf.constant([2.0]))
    for refused in (
        gen_ipu_ops.ipu_event_trace,
        gen_poputil_ops.ipu_stateful_gradient_accumulate,
    ):
        with pytest.raises(NotImplementedError, match="stand-in for tensorflow"):
            refused()

    assert normalised.numpy().tolist() == [2]
    assert gen_poputil_ops.replication_index().numpy() == 0


def test_other_operations_of_the_plugin_are_refused_in_words() -> None:
    from tensorflow.compiler.plugin.poplar import ops

    with pytest.raises(
        ImportError, match=r"of Graphcore's TensorFlow .* has no gen_popops_ops\."
    ):
        from tensorflow.compiler.plugin.poplar.ops import gen_popops_ops  # noqa: F401
    assert not hasattr(ops, "other")


@ipu.test_utils.test_uses_ipus(num_ipus=4)
def test_a_decorated_test_runs() -> None:
    assert tf.constant(1) == 1
