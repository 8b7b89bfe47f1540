"""The common parts of horovod.keras and horovod.tensorflow.keras, for either Keras.

Neither Keras declares types, so their objects are Any in this package.
"""
