"""PoplarExecutor: a module that runs and trains as options say."""

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from popdist.popdist_core import getNumIpusPerReplica, isPopdistEnvSet

from .._logging import logger
from ..enums import ConnectionType
from ..errors import Error, require
from ..options import Options, validation
from .compile.compilation import Compiled, compile_cached, compile_model
from .compile.executable_cache import ExecutableCache
from .compile.progress_bar import compilation_bar
from .compile.saved_model import SavedModel
from .forward.micro_batches import Inputs
from .forward.replica_state import RandomState, ReplicaBuffers
from .forward.timing import Latency
from .forward.training_flags import TrainingFlags
from .replicated_model import ReplicatedModel, Training
from .run_settings import RunSettings
from .update.anchors import GRADIENT, UPDATED, Anchors
from .update.exchange import Exchange
from .update.weight_update import WeightUpdate
from .wrapped_module import unwrap, wrap

_DEFAULT_LEARNING_RATE = 0.01


class PoplarExecutor:
    """Runs a module, and trains it, as options say.

    The weights of the device are the module's own parameters: what a call changes is
    seen in them at once. What the executor does not have itself it looks up in the
    module.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        options._freeze()
        self._settings = RunSettings.of(options, training)
        self._options = options.clone().outputMode(
            self._settings.output_mode, self._settings.output_period
        )
        self._options._freeze()
        self._user_model = model
        # It shares all but the attributes of the module itself, such as `training`:
        # programs call model.eval() between making two executors of one module.
        self._model = copy.copy(model)
        self._training = training
        self._optimizer = optimizer
        self._random_numbers: list[int] | None = None
        if training:
            wrap(model, self)
        self._forget()

    def _forget(self) -> None:
        """Forget all that compiling and loading the model has made."""
        self._compiled: Compiled | None = None
        self._loaded: ReplicatedModel | None = None
        self._attached = False
        self._has_run = False
        self._flags = TrainingFlags()
        self._buffers = ReplicaBuffers(self._model, self._settings.replicas)

    def __repr__(self) -> str:
        kind = "trainingModel" if self._training else "inferenceModel"
        return f"<{kind} of {type(self._user_model).__name__}: {self._options}>"

    # Any: whatever the module has.
    def __getattr__(self, name: str) -> Any:
        if name == "_user_model":
            raise AttributeError(name)
        return getattr(self._user_model, name)

    @property
    def model(self) -> nn.Module:
        """The module that runs: a shallow copy of the user's."""
        return self._model

    @property
    def options(self) -> Options:
        """The options, which are frozen."""
        return self._options

    # Any: whatever the module's forward takes and returns.
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on all micro-batches that the inputs hold.

        When training, all instances must make the same calls: a call blocks until the
        others make it. The first call compiles the model.

        Raises:
            Error: The inputs do not fit the options or the compiled model. Nothing
                has run then.
        """
        inputs = self._inputs(args, kwargs)
        require(
            self._options.connection_type != ConnectionType.Never,
            "Trying to run a model on an offline device (ConnectionType.Never): use "
            "model.compile(inputs) instead of model(inputs)",
        )
        compiled = self._compiled
        if compiled is None:
            compiled = self._compile(inputs)
        else:
            compiled.check_inputs(inputs)
        loaded = self._load(compiled)
        self._attached = True
        with self._flags.applied(self._model):
            result = loaded.run(compiled, inputs)
        self._has_run = True
        return result

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the model for inputs like these, and run nothing."""
        self._compile(self._inputs(args, kwargs))

    # Any: whatever the module's forward takes.
    def compileAndExport(
        self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any
    ) -> None:
        """Compile the model for inputs like these, and save() it.

        Args:
            filename: The file; in a folder, model.poptorch.
        """
        self.compile(*args, **kwargs)
        self.save(filename, export_model=export_model)

    def save(
        self, filename: str, export_model: bool = True, save_rng_state: bool = True
    ) -> None:
        """Save the compiled model with its weights.

        Args:
            export_model: Whether poptorch.load() can make an executor of the file; if
                not, only loadExecutable() of a model like this one reads it.

        Raises:
            Error: The model is not compiled.
        """
        compiled = self._check_compiled()
        SavedModel(
            training=self._training,
            compiled=compiled,
            weights=self._user_model.state_dict(),
            module=self._model if export_model else None,
            optimizer=self._optimizer if export_model else None,
            options=self._options if export_model else None,
            random_state=self.rng_state if save_rng_state else None,
        ).write(filename)

    def loadExecutable(self, filename: str) -> None:
        """Take over what a model like this one was compiled to, and its weights.

        Raises:
            Error: The file is missing, or of another kind of model.
        """
        saved = SavedModel.read(filename)
        if saved.training != self._training:
            kinds = {True: "trainingModel", False: "inferenceModel"}
            raise Error(
                f"{filename} holds {kinds[saved.training]}, but this is "
                f"{kinds[self._training]}. Load what the same kind has saved."
            )
        self._take_over(saved)

    def _take_over(self, saved: SavedModel) -> None:
        self.load_state_dict(saved.weights)
        self._compiled = saved.compiled
        self._attach()
        if saved.random_state is not None:
            self.rng_state = saved.random_state

    def isCompiled(self) -> bool:
        """Return whether the model is compiled."""
        return self._compiled is not None

    def destroy(self) -> None:
        """Forget what was compiled, and leave the module as it was, but trained."""
        self._forget()
        unwrap(self._user_model)

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Train with this optimizer, as it is now.

        Momenta are kept if it is of the same class and brings none of its own.

        Raises:
            Error: The model is not for training, or a constant attribute changes.
        """
        if not self._training:
            raise Error(
                "Cannot set an optimizer in an inferenceModel. Use a trainingModel."
            )
        training = None if self._loaded is None else self._loaded.training
        if training is not None:
            training.update.set_optimizer(optimizer)
            training.set_update(training.update)
        self._optimizer = optimizer

    # --- Weights.

    # Any: torch returns which keys did not fit.
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> Any:
        """Load weights and buffers into the module, and onto the device."""
        fitted = self._user_model.load_state_dict(state_dict, strict)
        self._buffers.reset()
        return fitted

    def copyWeightsToHost(self) -> None:
        """Bring weights to the module, where they are already.

        Raises:
            Error: The model is not compiled.
        """
        self._check_compiled()

    def copyWeightsToDevice(self) -> None:
        """Give all local replicas the module's weights and buffers.

        Raises:
            Error: The model is not compiled.
        """
        self._check_compiled()
        self._buffers.reset()

    def copyNamedBuffersToDevice(self) -> None:
        """Give all local replicas the module's buffers."""
        self.copyWeightsToDevice()

    # --- The device.

    def isAttachedToDevice(self) -> bool:
        """Return whether the model is attached to its device."""
        return self._attached

    def attachToDevice(self) -> None:
        """Attach to the device. Compiling and calling the model do so, too.

        Raises:
            Error: The model is not compiled, or is attached.
        """
        self._check_compiled()
        if self._attached:
            raise Error("Device is already attached")
        self._attached = True

    def detachFromDevice(self) -> None:
        """Leave the device to others, and keep the weights.

        Raises:
            Error: The model is not attached.
        """
        self._check_compiled()
        if not self._attached:
            raise Error("Device is not attached")
        self._attached = False

    @property
    def rng_state(self) -> list[int]:
        """The random state of the model: its seed, and how many iterations it ran.

        Raises:
            Error: The model is not compiled.
        """
        self._check_compiled()
        if self._loaded is not None:
            state = self._loaded.random_state
            return [state.seed, state.iterations]
        return self._random_numbers or [self._seed(), 0]

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        if (
            not isinstance(state, list)
            or len(state) != 2
            or not all(isinstance(one, int) for one in state)
        ):
            raise Error(
                f"rng_state is {state!r}, but must be a list of two whole numbers, as "
                "the rng_state of a model is."
            )
        self._random_numbers = list(state)
        if self._loaded is not None:
            held = self._loaded.random_state
            held.seed, held.iterations = state

    # --- How long the last call took.

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Return when each part of the last call ended, for each device iteration."""
        timing = self._ran().timing
        return {
            "input": [timing.input],
            "input_complete": [timing.input_complete],
            "output": [timing.output],
            "output_complete": [timing.output_complete],
        }

    def getLatency(self) -> Latency:
        """Return the minimum, maximum and average time of a device iteration."""
        timing = self._ran().timing
        return timing.latency(timing.input, timing.output_complete)

    def getComputeLatency(self) -> Latency:
        """Return how long the model itself took, as getLatency()."""
        timing = self._ran().timing
        return timing.latency(timing.input_complete, timing.output)

    def getHostIpuLatency(self) -> Latency:
        """Return how long preparing an iteration took, as getLatency()."""
        timing = self._ran().timing
        return timing.latency(timing.input, timing.input_complete)

    def getIpuHostLatency(self) -> Latency:
        """Return how long finishing an iteration took, as getLatency()."""
        timing = self._ran().timing
        return timing.latency(timing.output, timing.output_complete)

    def cycleCount(self) -> int:
        """Return the nanoseconds that the last call took, one cycle for each.

        Raises:
            Error: The option logCycleCount is off, or the model has not run.
        """
        counted = self._options._popart.options.get(
            "instrumentWithHardwareCycleCounter", False
        )
        if not counted:
            raise Error(
                "Cycle count logging is disabled. Please set option logCycleCount to "
                "True to enable."
            )
        timing = self._ran().timing
        return round((timing.output_complete[-1] - timing.input[0]) * 1e9)

    # --- Tensors of the last call.

    def getTensorNames(self) -> list[str]:
        """Return the names of the tensors that options can anchor.

        Raises:
            AssertionError: The model is not compiled.
        """
        require(
            self.isCompiled(), "Model must be compiled before calling getTensorNames"
        )
        if not self._training:
            return []
        trained = [
            name
            for name, parameter in self._user_model.named_parameters()
            if parameter.requires_grad
        ]
        return [kind + name for kind in (GRADIENT, UPDATED) for name in trained]

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Return a tensor that options have anchored, as the last call left it.

        Raises:
            Error: It is not the gradient or the weight of a parameter.
        """
        anchored = self._options.anchored_tensors
        require(
            short_name in anchored,
            f"No tensor is anchored as {short_name!r}, but {list(anchored)}: "
            "Options.anchorTensor() names them.",
        )
        training = None if self._loaded is None else self._loaded.training
        return (training.anchors if training else self._anchors()).tensor(short_name)

    def _anchors(self) -> Anchors:
        return Anchors(
            self._options.anchored_tensors,
            self._settings.output_mode,
            self._settings.output_period,
        )

    def _ran(self) -> ReplicatedModel:
        if self._loaded is None or not self._has_run:
            raise Error(
                "The model has not run yet. Please run the model at least once before "
                "asking how long it took."
            )
        return self._loaded

    # --- Compiling and loading.

    def _check_compiled(self) -> Compiled:
        if self._compiled is None:
            raise Error("Model has not been compiled or has been destroyed.")
        return self._compiled

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """Return the inputs as the device has them: it has no float64."""
        inputs = Inputs(args, kwargs, self._settings)
        if torch.float64 not in inputs.dtypes() or any(
            parameter.dtype is torch.float64 for parameter in self.parameters()
        ):
            return inputs
        _warn_of_float64()
        return inputs.narrowed({torch.float64: torch.float32})

    def _compile(self, inputs: Inputs) -> Compiled:
        self._get_device()
        ipus = getNumIpusPerReplica() if isPopdistEnvSet() else None
        popart = self._options._popart.options
        cached = popart.get("enableEngineCaching") and popart.get("cachePath")
        strategy = self._options._execution_strategy
        self._flags = TrainingFlags()
        with (
            self._flags.applied(self._model),
            compilation_bar(self._options._show_compilation_progress_bar) as progress,
        ):
            self._compiled = compile_cached(
                ExecutableCache(str(cached)) if cached else None,
                self._model,
                inputs,
                self._settings,
                strategy,
                ipus,
                lambda: compile_model(
                    self._model,
                    inputs,
                    self._settings,
                    self._buffers,
                    RandomState(self._seed()),
                    strategy,
                    ipus,
                    progress,
                ),
            )
            progress(100)
        self._attach()
        return self._compiled

    def _attach(self) -> None:
        """Attach to the device, unless the options say that there is none."""
        self._attached = self._options.connection_type != ConnectionType.Never

    def _get_device(self) -> None:
        """Log all options: reading popdist's attaches this process to its device."""
        validation.log(self._options.clone().toDict())

    def _load(self, compiled: Compiled) -> ReplicatedModel:
        """Load the weights when the model runs first: when training, instance 0's."""
        if self._loaded is not None:
            return self._loaded
        training, first_replica = None, 0
        if self._training:
            exchange = Exchange(self._settings)
            first_replica = exchange.first_replica
            weights = [*self._user_model.parameters(), *self._user_model.buffers()]
            exchange.broadcast([weight.detach() for weight in weights])
            self._buffers.reset()
            update = WeightUpdate(self._chosen_optimizer(), self._parameter_names())
            training = Training(
                self._settings, exchange, update, self._anchors(), compiled.half
            )
        state = RandomState(self._seed(), first_replica)
        if self._random_numbers is not None:
            state.seed, state.iterations = self._random_numbers
        self._loaded = ReplicatedModel(
            self._model, self._settings, self._buffers, state, training
        )
        return self._loaded

    def _chosen_optimizer(self) -> torch.optim.Optimizer:
        if self._optimizer is None:
            self._optimizer = torch.optim.SGD(
                self._user_model.parameters(), lr=_DEFAULT_LEARNING_RATE
            )
        return self._optimizer

    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return {p: name for name, p in self._user_model.named_parameters()}

    def _seed(self) -> int:
        seed = self._settings.random_seed
        return torch.initial_seed() if seed is None else seed


@cache
def _warn_of_float64() -> None:
    logger.warning(
        "torch.float64 is not supported natively on IPU, loss of range/precision may "
        "occur. Inputs are converted to torch.float32. We will only warn on the first "
        "instance."
    )
