"""Graphcore's runtime for compiled executables, which refuses."""

from ..refusals import refused

_REASON = "an executable for IPUs cannot run here. Call the model's function itself."
embedded_runtime_start = refused("embedded_runtime_start", _REASON)
embedded_runtime_call = refused("embedded_runtime_call", _REASON)
embedded_runtime_stop = refused("embedded_runtime_stop", _REASON)
emb_runtime_start = refused("emb_runtime_start", _REASON)
RuntimeContext = refused("RuntimeContext", _REASON)
