"""The operations for events of IPUs, which refuse."""

from tensorflow.python.ipu.refusals import NO_REPORTS, refused

# Many programs import this module and call it only where they profile.
ipu_event_trace = refused("gen_ipu_ops.ipu_event_trace", NO_REPORTS)
