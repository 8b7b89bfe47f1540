"""What horovod.keras and horovod.tensorflow.keras have in common, for either Keras."""
