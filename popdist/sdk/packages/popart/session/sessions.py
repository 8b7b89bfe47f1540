"""The methods of a session: weights in and out, steps, and models in files."""

import copy
import os
import time

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from popdist.replicated.members import Members
from popdist.session import STATE
from popdist.torch import tensors

from .. import enums
from ..data_flow import DataFlow
from ..device import DeviceInfo
from ..errors import Emulated, popart_exception, popart_runtime_error
from ..graph import Graph, InputShapeInfo, load_model
from ..nodes import proto_of, tensor_of
from ..operators import Values
from ..optimizers import Adam, Optimizer
from ..patterns import Patterns
from ..session_options import SessionOptions, replicated_settings
from ..step_io import Array, PyWeightsIO, StepIO, SyntheticInputs
from ..tensor_info import TensorInfo
from ..tensor_names import GRADIENT
from .replicas import Replicas, replica_groups
from .training import PURPOSE, Training, check_weights, join, meet


class _Session(Emulated):
    """A model on a device."""

    # The scalar that training makes smaller.
    _loss: str | None = None

    def __init__(
        self,
        fnModel: bytes | str | os.PathLike[str],
        dataFlow: DataFlow,
        deviceInfo: DeviceInfo,
        inputShapeInfo: InputShapeInfo | None = None,
        patterns: Patterns | None = None,
        userOptions: SessionOptions | None = None,
        name: str = "",
    ) -> None:
        options = copy.deepcopy(userOptions or SessionOptions())
        training, batches = self._loss is not None, dataFlow.batchesPerStep()
        self._options, self._device, self._flow = options, deviceInfo, dataFlow
        self._settings = replicated_settings(options, batches, training)
        self._check(training)
        shapes = inputShapeInfo or InputShapeInfo()
        self._graph = Graph(load_model(fnModel), shapes, training)
        self._check_anchors()
        first, total = 0, self._settings.replicas
        if options.enableDistributedReplicatedGraphs:
            first, total = options.globalReplicaOffset, options.globalReplicationFactor
        self._groups = replica_groups(self._graph, total)
        self._replicas = Replicas(
            *(self._graph, dataFlow, self._settings, self._groups, first, self._loss),
            options.enableFloatingPointChecks,
        )
        # The source of weightsFromHost().
        self._host: Values = {n: v.clone() for n, v in self._graph.weights.items()}
        # The optimizer's tensors by their names, which updates change.
        self._state: Values = {}
        self._training: Training | None = None
        self._is_prepared = self._is_loaded = self._has_weights = False
        self._last_run_s: float | None = None

    def _check(self, training: bool) -> None:
        """Raise popart_exception for what cannot be emulated."""
        options, device = self._options, self._device
        ipus, replicas = device.numIpus, self._settings.replicas
        if device.type != enums.DeviceType.Cpu and ipus % replicas:
            raise popart_exception(
                "For replicated graphs, the number of IPUs must be divisible by the "
                f"replication factor, but the device has {ipus} for {replicas} "
                "replicas. Acquire a device with a multiple of them."
            )
        refused = {
            "automaticLossScalingSettings.enabled": training
            and options.automaticLossScalingSettings.enabled,
            "hostWeightUpdate": options.hostWeightUpdate,
            "customCodelets": options.customCodelets,
        }
        for name, value in refused.items():
            if value:
                raise popart_exception(
                    f"SessionOptions.{name} is {value!r}, which popdist's stand-in for "
                    "popart cannot do. Leave it at its default."
                )

    def _check_anchors(self) -> None:
        for name in self._flow.anchors():
            tensor = name.removeprefix(GRADIENT)
            if tensor not in self._graph.infos:
                raise popart_exception(
                    f"Anchor tensor `{name}' does not exist. Anchors are tensors of "
                    "the model, and their gradients."
                )
            if tensor != name and not self._graph.training:
                raise popart_exception(
                    f"Anchor tensor `{name}' does not exist: an InferenceSession has "
                    "no gradients. Use a TrainingSession."
                )

    @property
    def dataFlow(self) -> DataFlow:
        """How many batches one call runs, and what it returns."""
        return self._flow

    @property
    def replicationFactor(self) -> int:
        """The number of local replicas."""
        return self._settings.replicas

    @property
    def accumulationFactor(self) -> int:
        """How many micro-batches each replica runs for one update."""
        return self._settings.gradient_accumulation

    def getInfo(self, id: str) -> TensorInfo:
        """Return the type and shape of a tensor."""
        name = id.removeprefix(GRADIENT)
        if name not in self._graph.infos:
            raise popart_exception(f"There is no tensor {id} in the model.")
        return self._graph.infos[name]

    def initAnchorArrays(self) -> dict[str, Array]:
        """Return arrays for PyStepIO, into which each call writes the anchors.

        Their dimensions are batches, steps of the gradient accumulation, local replicas
        and the tensor's dimensions; the first three are left out where there is one of
        them.
        """
        settings, arrays = self._settings, {}
        for name in self._flow.anchors():
            info, dims = self.getInfo(name), [settings.replicas]
            kind = self._flow.art(name)
            if kind.id().name in ("All", "EveryN"):
                batches = settings.device_iterations // kind.period
                dims = [batches, settings.gradient_accumulation, *dims]
            shape = [*(size for size in dims if size != 1), *info.shape()]
            arrays[name] = np.zeros(shape, info.element_type.numpy)
        return arrays

    def prepareDevice(self, loadEngine: bool = True) -> None:
        """Get ready to run.

        Args:
            loadEngine: Whether to call loadEngineAndConnectStreams(), too, which run()
                does otherwise. Without SessionOptions.compileEngine neither does.

        Raises:
            popart_runtime_error: The device cannot be attached.
        """
        self._is_prepared = True
        if loadEngine and self._options.compileEngine:
            self.loadEngineAndConnectStreams()

    def loadEngineAndConnectStreams(self) -> None:
        """Attach to the device, and load the engine that prepareDevice() has made.

        Raises:
            popart_exception: There is no engine.
            popart_runtime_error: The device cannot be attached.
        """
        if not self._is_prepared or not self._options.compileEngine:
            raise popart_exception(
                "The session has no compiled engine. Call prepareDevice() first, with "
                "SessionOptions.compileEngine at its default."
            )
        if not self._device.isAttached and not self._device.attach():
            raise popart_runtime_error(
                f"The session cannot attach to {self._device!r}, so it loads no "
                "engine. Call prepareDevice(loadEngine=False) to only check the "
                "model, or acquire a device that is not offline."
            )
        self._is_loaded = True

    def setRandomSeed(self, seedValue: int) -> None:
        """Set the seed of the random numbers of all replicas."""
        self._replicas.local.random_state = [int(seedValue), 0]

    def weightsFromHost(self) -> None:
        """Copy the weights from the host to the device."""
        own = {name: self._host[name] for name in self._graph.weights}
        self._replicas.load(own)
        self._state.clear()
        state = {n: v.clone() for n, v in self._host.items() if n not in own}
        self._state.update(state)
        self._has_weights = True

    def weightsToHost(self) -> None:
        """Copy the weights and the optimizer's tensors from the device to the host."""
        if not self._has_weights:
            return
        for name, value in {**self._replicas.weights, **self._state}.items():
            self._host[name] = value.detach().clone()

    def readWeights(self, weightsIo: PyWeightsIO) -> None:
        """Write weights of the host to the program's arrays."""
        for name, array in weightsIo.weights.items():
            value = self._host_value(name)
            if name in self._groups:
                replicas = self._groups[name].size * self._groups[name].count
                value = value[self._graph.grouped[name].returned_rows(replicas)]
            if array.size != value.numel():
                raise popart_exception(
                    f"The array for the weight {name} has {array.size} elements, but "
                    f"the weight has {value.numel()}. Make it with np.empty of the "
                    "weight's shape."
                )
            array[...] = value.numpy().reshape(array.shape)

    def writeWeights(self, weightsIo: PyWeightsIO) -> None:
        """Take weights for the host from the program's arrays."""
        self._require_variable("writeWeights")
        for name, array in weightsIo.weights.items():
            self._set_host(name, torch.from_numpy(np.array(array)))

    def _host_value(self, name: str) -> torch.Tensor:
        if name not in self._host:
            raise popart_exception(
                f"The session has no weight {name} on the host. Its weights are "
                f"{', '.join(self._host) or 'none'}."
            )
        return self._host[name]

    def _set_host(self, name: str, value: torch.Tensor) -> None:
        old = self._host_value(name)
        if value.numel() != old.numel() or value.dtype != old.dtype:
            raise popart_exception(
                f"The new value of the weight {name} is {TensorInfo.of(value)}, but "
                f"the weight is {TensorInfo.of(old)}. Give one of the same type and "
                "shape."
            )
        self._host[name] = value.reshape(old.shape).clone()

    def _require_variable(self, function: str) -> None:
        fixed = self._options.constantWeights and not self._graph.training
        if fixed and self._is_prepared:
            raise popart_exception(
                f"Cannot call {function} when constantWeights is set. Set "
                "SessionOptions.constantWeights to False before the session is created."
            )

    def resetHostWeights(
        self,
        modelProtoOrFilename: bytes | str | os.PathLike[str],
        ignoreWeightsInModelWithoutCorrespondingHostWeight: bool = False,
    ) -> None:
        """Take the weights for the host from a model."""
        self._require_variable("resetHostWeights")
        for initial in load_model(modelProtoOrFilename).graph.initializer:
            name = initial.name
            if name in self._host:
                self._set_host(name, tensor_of(initial))
            elif self._is_state(name):
                self._host[name] = tensor_of(initial)
            elif (
                name not in self._graph.constants
                and not ignoreWeightsInModelWithoutCorrespondingHostWeight
            ):
                raise popart_exception(
                    f"The model has a weight {name} that the session does not have. "
                    "Set ignoreWeightsInModelWithoutCorrespondingHostWeight to True "
                    "to leave it out."
                )

    def _is_state(self, name: str) -> bool:
        """Return whether an optimizer's tensor has this name."""
        _, separator, weight = name.partition("___")
        return bool(separator) and weight in self._graph.weights

    def modelToHost(self, fn: str | os.PathLike[str]) -> None:
        """Write the model with the weights of the device to a file."""
        self.weightsToHost()
        model = onnx.ModelProto()
        model.CopyFrom(self._graph.model)
        names = {initial.name for initial in model.graph.initializer}
        for initial in model.graph.initializer:
            name = initial.name
            if name in self._host:
                # Another library's models keep ONNX's own form.
                raw = initial.HasField("raw_data")
                store = numpy_helper.from_array if raw else proto_of
                initial.CopyFrom(store(self._host[name].numpy(), name))
        for name, value in self._host.items():
            if self._graph.training and name not in names:
                model.graph.initializer.append(proto_of(value.numpy(), name))
        onnx.save(model, os.fspath(fn))

    def broadcastWeights(self, rootRank: int = 0) -> None:
        """Overwrite the weights on all instances' hosts with one instance's weights.

        All instances of the job must call it. weightsFromHost() copies them on.

        Raises:
            popart_exception: The weights of instances differ in name, type or shape.
        """
        if STATE.job.place.size > 1:
            group = STATE.group(PURPOSE, STATE.job.members)
            check_weights(Members(instances=group), self._graph.weights)
            names = sorted(self._graph.weights)
            tensors.broadcast(group, [self._host[name] for name in names], rootRank)

    def run(self, stepio: StepIO, debugName: str = "") -> None:
        """Run as many batches as the DataFlow says.

        Raises:
            popart_exception: The session is not ready, or the data do not fit.
        """
        if self._device.connectionType == enums.DeviceConnectionType.Never:
            raise popart_runtime_error(
                "Offline IPU device is not configured for execution"
            )
        if not self._is_loaded:
            self.loadEngineAndConnectStreams()
        if not self._has_weights:
            if self._graph.training and self._graph.weights:
                raise popart_runtime_error(
                    "Must call weightsFromHost before run as the model has "
                    "initializers and the session has been created in training mode"
                )
            self.weightsFromHost()
        self._check_reduction()
        mode = self._options.syntheticDataMode
        if mode != enums.SyntheticDataMode.Off:
            stepio = SyntheticInputs(stepio, mode)
        began = time.perf_counter()
        self._replicas.run(stepio, self._training)
        self._last_run_s = time.perf_counter() - began

    def _check_reduction(self) -> None:
        """Raise popart_exception if gradients would go nowhere."""

    def getCycleCount(self, id: str = "") -> int:
        """Return how long the last run took, in cycles of the device's clock.

        It is the time that the CPU took: an IPU would need another number of cycles.

        Args:
            id: The name of a counter in the graph. There are none.

        Raises:
            popart_runtime_error: instrumentWithHardwareCycleCounter is not set, or
                nothing has run.
        """
        if not self._options.instrumentWithHardwareCycleCounter:
            raise popart_runtime_error(
                "SessionOptions.instrumentWithHardwareCycleCounter is False, so cycles "
                "are not counted. Set it before the session is made."
            )
        if id:
            raise popart_runtime_error(
                f"There is no cycle counter {id!r}. Call this without a name."
            )
        if self._last_run_s is None:
            raise popart_runtime_error("Nothing has run yet. Call run() before.")
        return round(self._last_run_s * self._device.tileClockFrequency)

    def getSummaryReport(self, resetProfile: bool = True) -> str:
        """Return that nothing is profiled."""
        return "Execution profiling not enabled"

    def updateEngineCache(self) -> None:
        """Do nothing: nothing is compiled."""


class InferenceSession(_Session):
    """Runs a model."""


class TrainingSession(_Session):
    """Trains a model."""

    def __init__(
        self,
        fnModel: bytes | str | os.PathLike[str],
        dataFlow: DataFlow,
        loss: str,
        optimizer: Optimizer,
        deviceInfo: DeviceInfo,
        inputShapeInfo: InputShapeInfo | None = None,
        patterns: Patterns | None = None,
        userOptions: SessionOptions | None = None,
        name: str = "training",
    ) -> None:
        """Prepare to train a model.

        With distributed replicated graphs, all instances of the job create their
        sessions in the same order.

        Raises:
            popart_exception: The model, the loss or the options are not valid.
        """
        self._loss = loss
        super().__init__(
            fnModel, dataFlow, deviceInfo, inputShapeInfo, patterns, userOptions
        )
        self._check_loss(loss)
        self._check_groups(optimizer)
        self._replicas.load(self._graph.weights)
        trained = {
            n: v
            for n, v in self._replicas.weights.items()
            if self._replicas.is_trained(n)
        }
        for weight in trained.values():
            weight.requires_grad_()
        members = meet(self._options, self._settings)
        strategy = self._options.meanAccumulationAndReplicationReductionStrategy
        # They turn means over all replicas into means over a group.
        factors = {name: groups.count for name, groups in self._groups.items()}
        self._training: Training = Training(
            *(self._settings, members, trained, self._state, copy.deepcopy(optimizer)),
            factors if strategy == enums.MeanReductionStrategy.Running else {},
        )
        self._is_averaged = False

    def _check_loss(self, loss: str) -> None:
        if loss not in self._graph.infos:
            raise popart_exception(f"The loss {loss!r} is not a tensor of the model.")
        if self._graph.infos[loss].nelms() != 1:
            raise popart_exception(
                f"The loss {loss} has the shape {self._graph.infos[loss].shape()}, but "
                "must be a scalar. Reduce it with ReductionType.Sum or "
                "ReductionType.Mean."
            )

    def _check_groups(self, optimizer: Optimizer) -> None:
        """Raise popart_exception if the update of a row would depend on other rows."""
        lamb = isinstance(optimizer, Adam) and "Lamb" in optimizer.mode.name
        if self._groups and (optimizer.clip_norm_settings or lamb):
            raise popart_exception(
                f"{', '.join(self._groups)} differ between replicas, for which Lamb "
                "and clip_norm_settings are not available: they need the norms of each "
                "replica's weights. Use another optimizer."
            )

    def _check_reduction(self) -> None:
        if (
            self._options.hostAllReduce
            and not self._is_averaged
            and STATE.job.place.size > 1
        ):
            raise popart_exception(
                "SessionOptions.hostAllReduce is True, but nothing reduces the "
                "gradients of this session. Create a "
                "horovod.popart.DistributedOptimizer of it before run()."
            )

    def updateOptimizerFromHost(self, optimizer: Optimizer) -> None:
        """Update the weights by this optimizer from now on.

        Raises:
            popart_exception: It changes a value that never changes.
        """
        self._training.optimizer.check_replacement(optimizer)
        self._check_groups(optimizer)
        self._training.optimizer = copy.deepcopy(optimizer)

    def average_over_instances(self) -> None:
        """Average gradients over all instances of the job, which must call this too."""
        self._is_averaged = True
        self._training.train_with(join(self._settings), averaged=True)
