"""Operations of users for IPUs, which refuse."""

from ..refusals import refused

_REASON = (
    "its codelets are compiled for an IPU. Write the operation in "
    "TensorFlow's, or as a tf.py_function."
)
precompiled_user_op = refused("precompiled_user_op", _REASON)
cpu_user_op = refused("cpu_user_op", _REASON)
codelet_expression_op = refused("codelet_expression_op", _REASON)
