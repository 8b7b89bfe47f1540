"""Normalisation over groups of channels, with its variables."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

Tensor = Any


def group_norm(
    inputs: Tensor,
    groups: int | None = 2,
    channels_axis: int = -1,
    reduction_axes: Any = None,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    param_initializers: Mapping[str, Any] | None = None,
    reuse: Any = None,
    variables_collections: Any = None,
    training: bool = True,
    trainable: bool = True,
    scope: Any = None,
    strided_channel_grouping: bool = True,
    name: str = "GroupNorm",
) -> Tensor:
    """Return a tensor with mean 0 and variance 1 in each group of channels.

    Args:
        inputs: A tensor of a known shape.
        groups: How many groups of channels; None for a group of each channel.
        channels_axis: The axis of the channels: 1, or the last.
        reduction_axes: Has no effect in the original.
        center: Whether to add the variable beta.
        scale: Whether to multiply by the variable gamma.
        epsilon: A number that is added to the variance.
        param_initializers: Initialisers of beta and gamma.
        reuse: Whether the variables of the scope are used again.
        variables_collections: The collections of the variables.
        training: Whether the network is trained; it changes nothing.
        trainable: Whether the variables are.
        scope: The scope of the variables.
        strided_channel_grouping: Whether channels c, c + groups and so on are a group,
            an efficient order on an IPU; else a group's channels stand side by side.
        name: The name of the scope, where it has none.
    """
    inputs = tf.convert_to_tensor(inputs)
    _check_axis(inputs, channels_axis, groups)
    initializers = {
        "beta": tf.compat.v1.zeros_initializer(),
        "gamma": tf.compat.v1.ones_initializer(),
        **(param_initializers or {}),
    }

    def variable(name: str) -> Tensor:
        collections = variables_collections
        if isinstance(collections, Mapping):
            collections = collections.get(name)
        return tf.compat.v1.get_variable(
            name,
            [inputs.shape[channels_axis]],
            inputs.dtype,
            initializers[name],
            collections=collections,
            trainable=trainable,
        )

    with tf.compat.v1.variable_scope(scope, name, [inputs], reuse=reuse):
        return normalise(
            inputs,
            groups,
            channels_axis,
            epsilon,
            strided_channel_grouping,
            variable("gamma") if scale else None,
            variable("beta") if center else None,
        )


def layer_norm(
    inputs: Tensor, channels_axis: int = -1, *args: Any, **kwargs: Any
) -> Tensor:
    """Return a tensor with mean 0 and variance 1 in each sample.

    `group_norm` has the same arguments after the axis.
    """
    return group_norm(
        inputs, 1, channels_axis, *args, **{"name": "LayerNorm", **kwargs}
    )


def instance_norm(
    inputs: Tensor, channels_axis: int = -1, *args: Any, **kwargs: Any
) -> Tensor:
    """Return a tensor with mean 0 and variance 1 in each channel of a sample.

    `group_norm` has the same arguments after the axis.
    """
    return group_norm(
        inputs, None, channels_axis, *args, **{"name": "InstanceNorm", **kwargs}
    )


def _check_axis(inputs: Tensor, axis: int, groups: int | None) -> int:
    """Return the axis of the channels, from 0, if they can be divided into groups."""
    rank = inputs.shape.rank
    if rank is None:
        raise ValueError("Inputs of undefined rank cannot be normalised: set a shape.")
    if not -rank <= axis < rank:
        raise ValueError(f"Axis {axis} is out of bounds for the shape {inputs.shape}.")
    axis %= rank
    if axis not in (1, rank - 1):
        raise ValueError(
            f"The channels are on axis {axis}, but must be on axis 1 or the last."
        )
    channels = inputs.shape[axis]
    if channels is None:
        raise ValueError(
            f"Inputs of the shape {inputs.shape} have an undefined channel dimension: "
            f"set the size of axis {axis}."
        )
    if groups is not None and (groups > channels or channels % groups):
        raise ValueError(f"{channels} channels cannot be divided into {groups} groups.")
    return axis


def normalise(
    inputs: Tensor,
    groups: int | None,
    channels_axis: int,
    epsilon: float,
    strided: bool,
    gamma: Tensor | None,
    beta: Tensor | None,
) -> Tensor:
    """Return a normalised tensor, times gamma, plus beta; see `group_norm`."""
    axis = _check_axis(inputs, channels_axis, groups)
    shape = tf.shape(inputs)
    groups = groups or inputs.shape[axis]
    each = inputs.shape[axis] // groups
    parts = [each, groups] if strided else [groups, each]
    split = tf.reshape(
        inputs, tf.concat([shape[:axis], parts, shape[axis + 1 :]], axis=0)
    )
    group_axis = axis + 1 if strided else axis
    axes = [i for i in range(1, inputs.shape.rank + 1) if i != group_axis]
    mean, variance = tf.nn.moments(split, axes, keepdims=True)
    normalised = (split - mean) * tf.math.rsqrt(variance + epsilon)
    outputs = tf.reshape(normalised, shape)
    along_channels = [-1 if i == axis else 1 for i in range(inputs.shape.rank)]
    if gamma is not None:
        outputs *= tf.reshape(tf.cast(gamma, outputs.dtype), along_channels)
    if beta is not None:
        outputs += tf.reshape(tf.cast(beta, outputs.dtype), along_channels)
    return outputs
