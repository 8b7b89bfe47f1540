"""TensorFlow's tensors as arrays that the engine reads and writes, without copies."""
