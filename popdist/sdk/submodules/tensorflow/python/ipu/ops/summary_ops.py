"""Reports of IPUs, which refuse."""

from ..refusals import refused

_REASON = "no program is compiled for an IPU, so there are no events and reports."
ipu_compile_summary = refused("ipu_compile_summary", _REASON)
get_ipu_reports = refused("get_ipu_reports", _REASON)
