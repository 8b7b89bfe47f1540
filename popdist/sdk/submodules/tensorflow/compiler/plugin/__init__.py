"""The operations of Graphcore's TensorFlow by the names that they have in a graph."""
