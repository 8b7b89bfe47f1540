"""Layers for IPUs: tf.keras's, and some further ones."""

from typing import Any

import tensorflow as tf

from ..ops.math_ops import serialized_matmul
from ..ops.normalization_ops import normalise
from ..refusals import refused

Dropout = tf.keras.layers.Dropout
GRU = PopnnGRU = tf.keras.layers.GRU
LSTM = PopnnLSTM = tf.keras.layers.LSTM

EffectiveTransformer = refused(
    "EffectiveTransformer", "use tf.keras.layers.MultiHeadAttention."
)
_CTC = "use tf.nn.ctc_beam_search_decoder."
CTCInferenceLayer = refused("CTCInferenceLayer", _CTC)
CTCPredictionsLayer = refused("CTCPredictionsLayer", _CTC)


class Embedding(tf.keras.layers.Embedding):
    """A table of embeddings, which an IPU may read in parts."""

    def __init__(
        self, *args: Any, serialization_factor: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)


class RecomputationCheckpoint(tf.keras.layers.Layer):
    """Returns its inputs; an IPU computes the operations before it again."""

    def call(self, inputs: Any) -> Any:
        """Return the inputs."""
        return tf.nest.map_structure(tf.identity, inputs)


class AssumeEqualAcrossReplicas(RecomputationCheckpoint):
    """Returns its inputs, which the program knows to be equal on all replicas."""

    def __init__(self, inplace: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class GroupNormalization(tf.keras.layers.Layer):
    """Gives each group of channels mean 0 and variance 1."""

    def __init__(
        self,
        dtype: Any = tf.float32,
        groups: int | None = 2,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        strided_channel_grouping: bool = True,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        """Make a layer.

        Args:
            dtype: The type of its weights.
            groups: How many groups of channels; None for a group of each channel.
            channels_axis: The axis of the channels: 1, or the last.
            center: Whether to add the weight beta.
            scale: Whether to multiply by the weight gamma.
            epsilon: A number that is added to the variance.
            beta_initializer: The initialiser of beta.
            gamma_initializer: The initialiser of gamma.
            strided_channel_grouping: Whether channels c, c + groups and so on are a
                group; else a group's channels stand side by side.
            trainable: Whether the weights are.
            kwargs: Further arguments of tf.keras.layers.Layer.
        """
        super().__init__(dtype=dtype, trainable=trainable, **kwargs)
        self.groups = groups
        self.channels_axis = channels_axis
        self.epsilon = epsilon
        self._weights_used = {"beta": center, "gamma": scale}
        self._initializers = {
            "beta": beta_initializer or "zeros",
            "gamma": gamma_initializer or "ones",
        }
        self._strided = strided_channel_grouping

    def build(self, input_shape: Any) -> None:
        """Make the weights."""
        for name, used in self._weights_used.items():
            weight = None
            if used:
                weight = self.add_weight(
                    name=name,
                    shape=(input_shape[self.channels_axis],),
                    initializer=self._initializers[name],
                )
            setattr(self, name, weight)
        super().build(input_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the normalised inputs."""
        return normalise(
            inputs,
            self.groups,
            self.channels_axis,
            self.epsilon,
            self._strided,
            self.gamma,
            self.beta,
        )


class InstanceNormalization(GroupNormalization):
    """Gives each channel of a sample mean 0 and variance 1."""

    def __init__(self, dtype: Any = tf.float32, **kwargs: Any) -> None:
        super().__init__(dtype, None, **kwargs)


class LayerNormalization(GroupNormalization):
    """Gives each sample mean 0 and variance 1, over all axes but the first."""

    def __init__(self, dtype: Any = tf.float32, **kwargs: Any) -> None:
        super().__init__(dtype, 1, **kwargs)


class SerialDense(tf.keras.layers.Dense):
    """A dense layer; an IPU computes its product in parts."""

    def __init__(
        self,
        units: int,
        serialization_factor: int,
        serialization_dimension: str,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Make a layer.

        Args:
            units: How many outputs.
            serialization_factor: Into how many parts an IPU divides the product.
            serialization_dimension: Along which dimension.
            args: Further arguments of tf.keras.layers.Dense.
            kwargs: The same, by name.
        """
        super().__init__(units, *args, **kwargs)
        self._serialization = (serialization_factor, serialization_dimension)

    def call(self, inputs: Any) -> Any:
        """Return the outputs, after checking how the product is divided."""
        outputs = serialized_matmul(inputs, self.kernel, *self._serialization)
        if self.bias is not None:
            outputs += self.bias
        return outputs if self.activation is None else self.activation(outputs)
