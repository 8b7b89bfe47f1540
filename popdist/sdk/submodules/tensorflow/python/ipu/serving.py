"""Exports for Graphcore's TensorFlow Serving, which refuse."""

from .refusals import refused

_REASON = "what it exports holds executables for IPUs. Use tf.saved_model.save."
export_keras = refused("export_keras", _REASON)
export_pipeline = refused("export_pipeline", _REASON)
export_single_step = refused("export_single_step", _REASON)
