"""TensorFlow's tensors as arrays that the engine reads and writes, without copies."""

from popdist.engine import check_compiled
from popdist.tensorflow.tensors import _kernels

# It is equal to KERNELS_VERSION in kernels/kernels.c. Both go up when Python's side
# needs other operations.
KERNELS_VERSION = 1

check_compiled(_kernels, KERNELS_VERSION)
