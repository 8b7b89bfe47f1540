"""What horovod.keras and horovod.tensorflow.keras have in common, for either Keras.

Neither Keras declares types, so their objects are Any in this package.
"""
