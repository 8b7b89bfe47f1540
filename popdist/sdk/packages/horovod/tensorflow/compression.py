"""The compressors of TensorFlow's tensors."""

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor

from ..common.compression import Compressor, NoneCompressor


class FP16Compressor:
    """Turns tensors of floating point numbers into float16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, tf.DType]:
        """Return the tensor as float16, and the dtype that it had."""
        if not tensor.dtype.is_floating:
            return tensor, tensor.dtype
        return tf.cast(tensor, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: tf.DType) -> Tensor:
        """Return the tensor as what it was."""
        return tf.cast(tensor, ctx) if ctx.is_floating else tensor


class Compression:
    """The compressors that there are."""

    none: Compressor = NoneCompressor()
    fp16: Compressor = FP16Compressor()
