"""Reports of IPUs, which refuse."""

from ..refusals import NO_REPORTS, refused

ipu_compile_summary = refused("ipu_compile_summary", NO_REPORTS)
get_ipu_reports = refused("get_ipu_reports", NO_REPORTS)
