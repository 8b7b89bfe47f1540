"""Executables for IPUs, which refuse to be compiled."""

from ..refusals import refused

_REASON = "nothing is compiled for an IPU. Run what ipu_compiler.compile returns."
experimental_application_compile_op = refused(
    "experimental_application_compile_op", _REASON
)
