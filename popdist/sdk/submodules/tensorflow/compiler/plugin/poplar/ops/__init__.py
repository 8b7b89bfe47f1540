"""The modules of operations that programs import."""

from typing import NoReturn

from . import gen_ipu_ops, gen_poputil_ops


def __getattr__(name: str) -> NoReturn:
    """Refuse a module in the words of the stand-in: Python has no reason to tell."""
    text = (
        f"{__name__} of Graphcore's TensorFlow is not available on the CPU but for "
        f"gen_ipu_ops and gen_poputil_ops: popdist's stand-in has no {name}. Use the "
        "functions of tensorflow.python.ipu."
    )
    raise (ImportError if name.startswith("gen_") else AttributeError)(text, name=name)
