"""Custom operators, computed by the functions that are registered for them."""

from popdist.sdk.custom_ops import CustomOpError, find_custom_op
from popdist.sdk.torch_custom_ops import PROVIDED, Tensors, compute_custom_op

from ..errors import UnavailableOperatorError, popart_exception
from .call import Call, Operator


def custom_operator(kind: str) -> Operator:
    """Return an operator that calls the function registered by its name.

    Raises:
        UnavailableOperatorError: There is no function.
    """
    try:
        find_custom_op(kind, PROVIDED)
    except CustomOpError as error:
        raise UnavailableOperatorError(str(error)) from None

    def convert(call: Call) -> Tensors:
        inputs = call.inputs
        if call.for_shapes:
            # Every element of these is the same number in memory.
            inputs = [None if x is None else x.contiguous() for x in inputs]
        try:
            outputs = compute_custom_op(kind, inputs, call.attributes)
        except CustomOpError as error:
            raise popart_exception(str(error)) from error
        if len(outputs) < call.outputs:
            raise popart_exception(
                f"The function of the custom operator {kind} returned {len(outputs)} "
                f"outputs, but the node has {call.outputs}. Return as many, or lower "
                "numOutputs."
            )
        return outputs

    return Operator(convert)
