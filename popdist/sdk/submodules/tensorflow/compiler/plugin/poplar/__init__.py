"""Graphcore's Poplar as a device of TensorFlow."""
