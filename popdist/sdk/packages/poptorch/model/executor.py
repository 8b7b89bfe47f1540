"""PoplarExecutor: a module that runs and trains as options say.

Any: a model's forward takes and returns objects of all kinds.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..enums import ConnectionType, MeanReductionStrategy
from ..errors import Error, require
from ..options import Options
from .compile.compilation import Compiled
from .compile.saved_model import SavedModel
from .model_state import ModelState
from .replica_grouping import PerReplicaParameters, note_read
from .run_settings import RunSettings
from .timing import Measurements, Timing
from .update.anchors import GRADIENT, UPDATED
from .update.plain_steps import watch_plain_steps
from .wrapped_module import unwrap, wrap


class PoplarExecutor(Measurements):
    """Runs a module, and trains it, as options say.

    The weights of the device are the module's own parameters: what a call changes is
    seen in them at once. The module has all attributes that the executor lacks.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        options._freeze()
        settings = RunSettings.of(options, training)
        self._options = options.clone().outputMode(
            settings.output_mode, settings.output_period
        )
        self._choose_reduction_strategy(optimizer, is_compiled=False)
        self._options._freeze()
        self._user_model = model
        # It shares all but the attributes of the module itself, such as `training`:
        # programs call model.eval() between making two executors of one module.
        self._model = copy.copy(model)
        self._training = training
        # Which parameters differ between replicas.
        self.per_replica_params = PerReplicaParameters(model, settings)
        self._state = ModelState(
            *(self._model, self._options, settings, optimizer, self.per_replica_params)
        )
        self._timing: Timing | None = None
        if training:
            wrap(model, self)
            if settings.instances > 1:
                watch_plain_steps()

    def __repr__(self) -> str:
        kind = "trainingModel" if self._training else "inferenceModel"
        return f"<{kind} of {type(self._user_model).__name__}: {self._options}>"

    def __getattr__(self, name: str) -> Any:
        if name == "_user_model":
            raise AttributeError(name)
        value = getattr(self._user_model, name)
        if isinstance(value, nn.Parameter):
            note_read(value, self.per_replica_params, name)
        return value

    @property
    def model(self) -> nn.Module:
        """The module that is trained; when inferring, its shallow copy that runs."""
        return self._user_model if self._training else self._model

    @property
    def options(self) -> Options:
        """The options, which are frozen."""
        return self._options

    @property
    def _executable(self) -> Compiled | None:
        # Programs ask for it whether a model is compiled.
        return self._state.compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on all micro-batches that the inputs hold.

        When training, all instances must make the same calls: a call blocks until the
        others make it. The first call compiles the model.

        Raises:
            Error: The inputs do not fit the options or the compiled model. Nothing
                has run then.
        """
        inputs = self._state.inputs(args, kwargs)
        require(
            self._options.connection_type != ConnectionType.Never,
            "Trying to run a model on an offline device (ConnectionType.Never): use "
            "model.compile(inputs) instead of model(inputs)",
        )
        compiled = self._state.compiled
        if compiled is None:
            compiled = self._state.compile(inputs)
        else:
            compiled.check_inputs(inputs)
        result, self._timing = self._state.run(compiled, inputs)
        return result

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the model for inputs like these, and run nothing."""
        self._state.compile(self._state.inputs(args, kwargs))

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
            optimizer=self._state.optimizer if export_model else None,
            options=self._options if export_model else None,
            random_state=self.rng_state if save_rng_state else None,
            groups=dict(self.per_replica_params),
        ).write(filename)

    def loadExecutable(self, filename: str) -> None:
        """Take over what a model like this one was compiled to, and its weights.

        Raises:
            Error: The file is missing, or of another kind of model.
        """
        saved = SavedModel.read(filename)
        if saved.training != self._training:
            kinds = ("inferenceModel", "trainingModel")
            raise Error(
                f"{filename} holds {kinds[saved.training]}, but this is "
                f"{kinds[self._training]}. Load what the same kind has saved."
            )
        self._take_over(saved)

    def _take_over(self, saved: SavedModel) -> None:
        self.per_replica_params.update(saved.groups)
        self.load_state_dict(saved.weights)
        self._state.compiled = saved.compiled
        self.per_replica_params.frozen = True
        self._state.attach()
        if saved.random_state is not None:
            self._state.replicas.random_state = saved.random_state

    def isCompiled(self) -> bool:
        """Return whether the model is compiled."""
        return self._state.compiled is not None

    def destroy(self) -> None:
        """Forget what was compiled, and leave the module as it was, but trained."""
        self._state.forget()
        self._timing = None
        unwrap(self._user_model)

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Train with this optimizer, as it is now.

        Momenta are kept if the class is the same and the new optimizer has none.

        Raises:
            Error: The model is not for training, or a constant attribute changes.
            ValueError: The optimizer needs another compiled model.
        """
        if not self._training:
            raise Error(
                "Cannot set an optimizer in an inferenceModel. Use a trainingModel."
            )
        self._choose_reduction_strategy(optimizer, self.isCompiled())
        self._state.set_optimizer(optimizer)

    def _choose_reduction_strategy(
        self, optimizer: torch.optim.Optimizer | None, is_compiled: bool
    ) -> None:
        """Let float16 accumulators of gradients hold means, which cannot overflow."""
        training = self._options.Training
        if (
            getattr(optimizer, "accum_type", None) is not torch.float16
            or getattr(optimizer, "use_combined_accum", False)
            or training.meanAccumulationAndReplicationReductionStrategy
            != MeanReductionStrategy.Post
        ):
            return
        if is_compiled:
            raise ValueError(
                "The optimizer accumulates gradients in torch.float16, which needs "
                "MeanReductionStrategy.Running, but the model is already compiled "
                "with Post. Set accum_type before, or make a new trainingModel."
            )
        # They are a copy: the user's own options stay as they are.
        name = "meanAccumulationAndReplicationReductionStrategy"
        training._values[name] = MeanReductionStrategy.Running

    # --- Weights.

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> Any:
        """Load weights and buffers into the module, and onto the device."""
        fitted = self._user_model.load_state_dict(state_dict, strict)
        self._state.replicas.buffers.reset()
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
        self._state.replicas.buffers.reset()

    def copyNamedBuffersToDevice(self) -> None:
        """Give all local replicas the module's buffers."""
        self.copyWeightsToDevice()

    # --- The device.

    def isAttachedToDevice(self) -> bool:
        """Return whether the model is attached to its device."""
        return self._state.attached

    def attachToDevice(self) -> None:
        """Attach to the device. Compiling and calling the model do so, too.

        Raises:
            Error: The model is not compiled, or is attached.
        """
        self._check_compiled()
        if self._state.attached:
            raise Error("Device is already attached")
        self._state.attached = True

    def detachFromDevice(self) -> None:
        """Leave the device to others, and keep the weights.

        Raises:
            Error: The model is not attached.
        """
        self._check_compiled()
        if not self._state.attached:
            raise Error("Device is not attached")
        self._state.attached = False

    @property
    def rng_state(self) -> list[int]:
        """The random state of the model: its seed, and how many iterations it ran.

        Raises:
            Error: The model is not compiled.
        """
        self._check_compiled()
        return self._state.replicas.random_state

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        if not isinstance(state, list) or [type(n) for n in state] != [int, int]:
            raise Error(
                f"rng_state is {state!r}, but must be a list of two whole numbers, as "
                "the rng_state of a model is."
            )
        self._state.replicas.random_state = state

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
        parameters = self._user_model.named_parameters()
        trained = [name for name, weight in parameters if weight.requires_grad]
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
        return self._state.anchors.tensor(short_name)

    def _check_compiled(self) -> Compiled:
        if self._state.compiled is None:
            raise Error("Model has not been compiled or has been destroyed.")
        return self._state.compiled
