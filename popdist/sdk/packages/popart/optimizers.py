"""PopART's optimizers: their values, by weight, and the formulas of their updates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from .enums import (
    AdamMode,
    AdaptiveMode,
    DataType,
    SGDAccumulatorAndMomentum,
    WeightDecayMode,
)
from .errors import popart_exception
from .tensor_names import COMBINED, FIRST, SECOND, STEP, THIRD

# A value, and whether it never changes.
Pair = tuple[float, bool]
State = dict[str, torch.Tensor]


class OptimizerValue:
    """One value of an optimizer, and whether it never changes."""

    def __init__(self, val: float | Pair = 0.0, isConst: bool = True) -> None:
        if isinstance(val, tuple):
            val, isConst = val
        self._value, self._constant = float(val), bool(isConst)

    def val(self) -> float:
        """Return the value."""
        return self._value

    def isConst(self) -> bool:
        """Return whether it never changes."""
        return self._constant


class OptimizerValueMap:
    """One value of an optimizer for each weight."""

    def __init__(
        self, default: OptimizerValue, specific: Mapping[str, OptimizerValue]
    ) -> None:
        self._default, self._specific = default, dict(specific)

    def getDefault(self) -> OptimizerValue:
        """Return the value of weights that have none of their own."""
        return self._default

    def get(self, id: str) -> OptimizerValue:
        """Return the value of a weight."""
        return self._specific.get(id, self._default)


@dataclass(frozen=True, slots=True)
class ClipNormSettings:
    """Some weights, and the largest norm that their gradients may have together."""

    # None for all weights.
    weightIds: Sequence[str] | None
    maxNorm: float

    @classmethod
    def clipWeights(cls, weightIds: Sequence[str], maxNorm: float) -> Self:
        """Return the settings for some weights."""
        return cls(list(weightIds), maxNorm)

    @classmethod
    def clipAllWeights(cls, maxNorm: float) -> Self:
        """Return the settings for all weights."""
        return cls(None, maxNorm)


class Optimizer:
    """What all optimizers have: values with defaults, and values of single weights."""

    # Names as in insertSpecific(), and defaults.
    VALUES: ClassVar[Mapping[str, float]] = {}

    def __init__(
        self,
        values: Mapping[str, Pair],
        clip_norm_settings: Sequence[ClipNormSettings] = (),
    ) -> None:
        self._specific: dict[str, dict[str, OptimizerValue]] = {}
        self._defaults = {n: OptimizerValue(v, True) for n, v in self.VALUES.items()}
        self._loss_scaling = OptimizerValue(1.0, True)
        self.clip_norm_settings = tuple(clip_norm_settings)
        for name, pair in values.items():
            self._set_default(name, _value(name, pair))

    def _set_default(self, name: str, value: OptimizerValue) -> None:
        if name == "lossScaling":
            self._loss_scaling = value
            return
        short = name.removeprefix("default")
        short = short[:1].lower() + short[1:]
        if short not in self._defaults or (name == short and short not in _PLAIN):
            names = [n if n in _PLAIN else _with_default(n) for n in self._defaults]
            raise popart_exception(
                f"{type(self).__name__} has no value {name}. Choose among "
                f"{', '.join(names)} and lossScaling."
            )
        self._defaults[short] = value

    def insertSpecific(self, id: str, values: Mapping[str, Pair]) -> None:
        """Set values for one weight.

        Args:
            id: The name of the weight.
            values: Values by name, such as `{"learningRate": (0.1, False)}`.
        """
        unknown = [name for name in values if name not in self._defaults]
        if unknown:
            raise popart_exception(
                f"{type(self).__name__} has no value {unknown[0]} for one weight. "
                f"Choose among {', '.join(self._defaults)}."
            )
        self._specific.setdefault(id, {}).update(
            {name: _value(name, pair) for name, pair in values.items()}
        )

    def value(self, name: str, weight: str) -> float:
        """Return a value for a weight."""
        return self._map(name).get(weight).val()

    def _map(self, name: str) -> OptimizerValueMap:
        specific = {w: v[name] for w, v in self._specific.items() if name in v}
        return OptimizerValueMap(self._defaults[name], specific)

    def learningRates(self) -> OptimizerValueMap:
        """Return the learning rates."""
        return self._map("learningRate")

    def weightDecays(self) -> OptimizerValueMap:
        """Return the weight decays."""
        return self._map("weightDecay")

    def getLossScalingVal(self) -> float:
        """Return by what the loss is multiplied, and gradients divided."""
        return self._loss_scaling.val()

    def check_replacement(self, new: "Optimizer") -> None:
        """Raise popart_exception if another one changes what never changes."""
        if type(new) is not type(self):
            raise popart_exception(
                f"The session was created with an optimizer of the class "
                f"{type(self).__name__}, and cannot go on with one of "
                f"{type(new).__name__}. Give one of the same class."
            )
        _check_constant("lossScaling", self._loss_scaling, new._loss_scaling)
        weights = sorted(self._specific.keys() | new._specific.keys())
        for name in self._defaults:
            old, now = self._map(name), new._map(name)
            _check_constant(name, old.getDefault(), now.getDefault())
            for weight in weights:
                label = f"{name} of the weight {weight}"
                _check_constant(label, old.get(weight), now.get(weight))
        kept, other = self._kept_arguments(), new._kept_arguments()
        for name, argument in kept.items():
            if other.get(name, argument) != argument:
                raise popart_exception(
                    f"The optimizer's {name} cannot change from {argument} to "
                    f"{other[name]}: its tensors would not fit. Give an optimizer with "
                    f"{argument}, or create a new session."
                )

    def _kept_arguments(self) -> dict[str, str]:
        """Return the arguments, by name, that a replacement must have, too."""
        return {}

    def update(
        self, name: str, weight: torch.Tensor, gradient: torch.Tensor, state: State
    ) -> torch.Tensor:
        """Return a weight after one update.

        Args:
            name: The name of the weight.
            weight: Its value.
            gradient: Its gradient, without loss scaling.
            state: The optimizer's tensors, by their names, which it changes.
        """
        raise NotImplementedError


def _check_constant(name: str, old: OptimizerValue, new: OptimizerValue) -> None:
    if old.isConst() and (old.val() != new.val() or not new.isConst()):
        raise popart_exception(
            f"The optimizer's {name} is constant and cannot change from {old.val()} to "
            f"{new.val()}. Create the session with a value that is not constant, such "
            f"as ({old.val()}, False)."
        )


# Their names have no `default` before them.
_PLAIN = ("nesterov", "maxWeightNorm")


def _with_default(name: str) -> str:
    return f"default{name[0].upper()}{name[1:]}"


def _value(name: str, pair: Pair) -> OptimizerValue:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise popart_exception(
            f"The optimizer's {name} is {pair!r}, but must be a tuple of a number and "
            "whether it never changes, such as (0.1, False)."
        )
    return OptimizerValue(pair)


def _kept(state: State, name: str, like: torch.Tensor) -> torch.Tensor:
    """Return one of the optimizer's tensors, which are zero at first."""
    if name not in state:
        state[name] = torch.zeros_like(like)
    return state[name]


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum, dampening and weight decay."""

    VALUES: ClassVar[Mapping[str, float]] = {
        "learningRate": 0.1,
        "weightDecay": 0.0,
        "momentum": 0.0,
        "dampening": 0.0,
        "velocityScaling": 1.0,
        "nesterov": 0.0,
    }

    def __init__(
        self,
        pyd: Mapping[str, Pair] | float | None = None,
        clip_norm_settings: Sequence[ClipNormSettings] = (),
        accumulatorAndMomentum: SGDAccumulatorAndMomentum = (
            SGDAccumulatorAndMomentum.Combined
        ),
        accumType: DataType = DataType.UNDEFINED,
        accl1Type: DataType = DataType.UNDEFINED,
    ) -> None:
        """Make one.

        Args:
            pyd: Values by name, such as `{"defaultLearningRate": (0.1, False)}`, or
                the learning rate.
            clip_norm_settings: The largest norms of gradients.
            accumulatorAndMomentum: How momenta are named. Both ways compute the same.
            accumType: Without effect: gradients are added up in float32.
            accl1Type: Without effect: momenta are in float32.
        """
        if isinstance(pyd, int | float):
            pyd = {"defaultLearningRate": (pyd, False)}
        super().__init__(pyd or {}, clip_norm_settings)
        combined = accumulatorAndMomentum == SGDAccumulatorAndMomentum.Combined
        self._accumulator_and_momentum = accumulatorAndMomentum
        self._prefix = COMBINED if combined else FIRST

    def _kept_arguments(self) -> dict[str, str]:
        momenta = [self._defaults["momentum"]]
        momenta += [self.momentums().get(weight) for weight in self._specific]
        if not any(momentum.val() or not momentum.isConst() for momentum in momenta):
            return {}
        return {"accumulatorAndMomentum": self._accumulator_and_momentum.name}

    def momentums(self) -> OptimizerValueMap:
        """Return the momenta."""
        return self._map("momentum")

    def dampenings(self) -> OptimizerValueMap:
        """Return the dampenings."""
        return self._map("dampening")

    def velocityScalings(self) -> OptimizerValueMap:
        """Return what the stored momenta are scaled by."""
        return self._map("velocityScaling")

    def update(
        self, name: str, weight: torch.Tensor, gradient: torch.Tensor, state: State
    ) -> torch.Tensor:
        """Return a weight after one update."""
        rate, decay, momentum, dampening, scaling, nesterov = (
            self.value(value, name) for value in self.VALUES
        )
        # What changes nothing would cost as much as the update itself.
        if decay:
            gradient = gradient + decay * weight
        if scaling != 1:
            gradient = scaling * gradient
        velocity = (1 - dampening) * gradient if dampening else gradient
        if momentum:
            key = self._prefix + name
            velocity = momentum * _kept(state, key, weight) + velocity
            state[key] = velocity
        if nesterov:
            velocity = gradient + momentum * velocity
        return torch.sub(weight, velocity, alpha=rate / scaling)


class ConstSGD(SGD):
    """Stochastic gradient descent whose values never change."""

    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        loss_scaling: float = 1.0,
        clip_norm_settings: Sequence[ClipNormSettings] = (),
    ) -> None:
        super().__init__(
            {
                "defaultLearningRate": (learning_rate, True),
                "defaultWeightDecay": (weight_decay, True),
                "lossScaling": (loss_scaling, True),
            },
            clip_norm_settings,
        )


class Adam(Optimizer):
    """Adam, AdamW, AdaMax and Lamb, with and without correction of the bias."""

    VALUES: ClassVar[Mapping[str, float]] = {
        "learningRate": 0.1,
        "weightDecay": 0.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-6,
        "maxWeightNorm": 10.0,
    }

    def __init__(
        self,
        values: Mapping[str, Pair],
        mode: AdamMode = AdamMode.Adam,
        weight_decay_mode: WeightDecayMode = WeightDecayMode.Decay,
        accum_type: DataType = DataType.UNDEFINED,
        accl1_type: DataType = DataType.FLOAT,
        accl2_type: DataType = DataType.FLOAT,
        clip_norm_settings: Sequence[ClipNormSettings] = (),
        scaled_optimizer_state: bool = False,
    ) -> None:
        """Make one. Types and scaling of its tensors have no effect: all are float32.

        Args:
            values: Values by name, such as `{"defaultLearningRate": (0.1, False)}`.
            mode: Which of the formulas updates the weights.
            weight_decay_mode: Whether weights decay by themselves.
            accum_type: Without effect.
            accl1_type: Without effect.
            accl2_type: Without effect.
            clip_norm_settings: The largest norms of gradients.
            scaled_optimizer_state: Without effect.
        """
        super().__init__(values, clip_norm_settings)
        self.mode, self.weight_decay_mode = mode, weight_decay_mode

    def _kept_arguments(self) -> dict[str, str]:
        return {
            "mode": self.mode.name,
            "weight_decay_mode": self.weight_decay_mode.name,
        }

    def beta1s(self) -> OptimizerValueMap:
        """Return the rates by which the first momenta decay."""
        return self._map("beta1")

    def beta2s(self) -> OptimizerValueMap:
        """Return the rates by which the second momenta decay."""
        return self._map("beta2")

    def epss(self) -> OptimizerValueMap:
        """Return what is added to denominators."""
        return self._map("eps")

    def maxWeightNorms(self) -> OptimizerValueMap:
        """Return the largest norms of weights that Lamb scales by."""
        return self._map("maxWeightNorm")

    def update(
        self, name: str, weight: torch.Tensor, gradient: torch.Tensor, state: State
    ) -> torch.Tensor:
        """Return a weight after one update."""
        rate, decay, beta1, beta2, epsilon, most = (
            self.value(value, name) for value in self.VALUES
        )
        if self.weight_decay_mode == WeightDecayMode.L2Regularization:
            gradient, decay = gradient + decay * weight, 0.0
        first = beta1 * _kept(state, FIRST + name, weight) + (1 - beta1) * gradient
        second = beta2 * _kept(state, SECOND + name, weight)
        greatest = self.mode == AdamMode.AdaMax
        if greatest:
            second = torch.maximum(second, gradient.abs())
        else:
            second = second + (1 - beta2) * gradient * gradient
        step = _kept(state, STEP + name, weight.new_zeros([])) + 1
        state.update({FIRST + name: first, SECOND + name: second, STEP + name: step})
        if self.mode not in (AdamMode.AdamNoBias, AdamMode.LambNoBias):
            first = first / (1 - beta1 ** step.item())
            second = second if greatest else second / (1 - beta2 ** step.item())
        change = first / ((second if greatest else second.sqrt()) + epsilon)
        change = change + decay * weight
        if self.mode in (AdamMode.Lamb, AdamMode.LambNoBias):
            rate *= _trust(weight, change, most)
        return weight - rate * change


def _trust(weight: torch.Tensor, change: torch.Tensor, most: float) -> float:
    """Return by what Lamb scales the change of a weight."""
    norm, change_norm = weight.norm().item(), change.norm().item()
    return min(norm, most) / change_norm if norm and change_norm else 1.0


class Adaptive(Optimizer):
    """AdaGrad, RMSProp, centred RMSProp and AdaDelta."""

    VALUES: ClassVar[Mapping[str, float]] = {
        "learningRate": 0.01,
        "weightDecay": 0.0,
        "alpha": 0.99,
        "momentum": 0.0,
        "eps": 1e-6,
    }

    def __init__(
        self,
        values: Mapping[str, Pair],
        mode: AdaptiveMode = AdaptiveMode.RMSProp,
        weight_decay_mode: WeightDecayMode = WeightDecayMode.Decay,
        accum_type: DataType = DataType.UNDEFINED,
        accl1_type: DataType = DataType.FLOAT,
        accl2_type: DataType = DataType.FLOAT,
        accl3_type: DataType = DataType.UNDEFINED,
        rmsprop_tf_variant: bool = False,
    ) -> None:
        """Make one. Types of its tensors have no effect: all are float32.

        Args:
            values: Values by name, such as `{"defaultLearningRate": (0.1, False)}`.
            mode: Which of the formulas updates the weights.
            weight_decay_mode: Whether weights decay by themselves.
            accum_type: Without effect.
            accl1_type: Without effect.
            accl2_type: Without effect.
            accl3_type: Without effect.
            rmsprop_tf_variant: Whether RMSProp follows TensorFlow.
        """
        super().__init__(values)
        self.mode, self.weight_decay_mode = mode, weight_decay_mode
        centred = (AdaptiveMode.RMSProp, AdaptiveMode.CenteredRMSProp)
        self._as_tensorflow = rmsprop_tf_variant and mode in centred

    def _kept_arguments(self) -> dict[str, str]:
        return {
            "mode": self.mode.name,
            "weight_decay_mode": self.weight_decay_mode.name,
            "rmsprop_tf_variant": str(self._as_tensorflow),
        }

    def alphas(self) -> OptimizerValueMap:
        """Return the rates by which the tensors decay."""
        return self._map("alpha")

    def momentums(self) -> OptimizerValueMap:
        """Return the momenta."""
        return self._map("momentum")

    def epss(self) -> OptimizerValueMap:
        """Return what is added to denominators."""
        return self._map("eps")

    def update(
        self, name: str, weight: torch.Tensor, gradient: torch.Tensor, state: State
    ) -> torch.Tensor:
        """Return a weight after one update."""
        rate, decay, _, momentum, _ = (self.value(value, name) for value in self.VALUES)
        if self.weight_decay_mode == WeightDecayMode.L2Regularization:
            gradient, decay = gradient + decay * weight, 0.0
        change = self._change(name, gradient, state)
        # TensorFlow's momentum has the learning rate in it.
        scaled = self._as_tensorflow and momentum
        if scaled:
            change, rate = rate * change, 1.0
        if momentum:
            change = momentum * _kept(state, THIRD + name, weight) + change
            state[THIRD + name] = change
        return weight - rate * (change + decay * weight)

    def _change(self, name: str, gradient: torch.Tensor, state: State) -> torch.Tensor:
        """Return the change of a weight for a learning rate of 1."""
        alpha, epsilon = self.value("alpha", name), self.value("eps", name)
        first = _kept(state, FIRST + name, gradient)
        if self.mode == AdaptiveMode.AdaGrad:
            first = first + gradient * gradient
        else:
            first = alpha * first + (1 - alpha) * gradient * gradient
        state[FIRST + name] = first
        if self.mode == AdaptiveMode.AdaDelta:
            second = _kept(state, SECOND + name, gradient)
            change = gradient * (second + epsilon).sqrt() / (first + epsilon).sqrt()
            state[SECOND + name] = alpha * second + (1 - alpha) * change * change
            return change
        variance = first
        if self.mode == AdaptiveMode.CenteredRMSProp:
            second = alpha * _kept(state, SECOND + name, gradient)
            second = second + (1 - alpha) * gradient
            state[SECOND + name] = second
            variance = first - second * second
        if self._as_tensorflow:
            return gradient / (variance + epsilon).sqrt()
        return gradient / (variance.sqrt() + epsilon)


def clipped(
    gradients: Mapping[str, torch.Tensor], settings: Sequence[ClipNormSettings]
) -> dict[str, torch.Tensor]:
    """Return gradients whose norms, over the weights of each setting, are limited."""
    result = dict(gradients)
    for setting in settings:
        names = result if setting.weightIds is None else setting.weightIds
        chosen = [name for name in names if name in result]
        if not chosen:
            continue
        norm = torch.stack([result[name].norm() for name in chosen]).norm()
        scale = setting.maxNorm / torch.clamp(norm, min=setting.maxNorm)
        result.update({name: result[name] * scale for name in chosen})
    return result
