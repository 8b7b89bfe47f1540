"""The operators of ONNX and ai.graphcore, converted to torch: one table of them all."""

from . import control_flow, convolution, elementwise, losses, normalization
from . import recurrent as recurrent
from . import reductions as reductions
from . import resizing as resizing
from . import shapes as shapes
from .call import Form, Operator
from .control_flow import bodies_of, captured_by, scan_numbers
from .custom import custom_operator as custom_operator
from .losses import LIKELIHOOD_OF_SCORES
from .node import Body, Node, Values

ONNX_DOMAINS = ("", "ai.onnx")
GRAPHCORE_DOMAIN = "ai.graphcore"
# The versions of the operators' set of ONNX that PopART knows.
OLDEST_VERSION, NEWEST_VERSION = 6, 11

ONNX: dict[str, Operator] = {
    **control_flow.ONNX,
    **convolution.ONNX,
    **elementwise.ONNX,
    **normalization.ONNX,
    **recurrent.ONNX,
    **reductions.ONNX,
    **resizing.ONNX,
    **shapes.ONNX,
}
GRAPHCORE: dict[str, Operator] = {
    **control_flow.GRAPHCORE,
    **elementwise.GRAPHCORE,
    **losses.GRAPHCORE,
    **normalization.GRAPHCORE,
    **reductions.GRAPHCORE,
    **shapes.GRAPHCORE,
}


def operator(domain: str, kind: str) -> Operator | None:
    """Return an operator of a domain; None if it is not available here."""
    if domain in ONNX_DOMAINS:
        return ONNX.get(kind)
    return GRAPHCORE.get(kind) if domain == GRAPHCORE_DOMAIN else None
