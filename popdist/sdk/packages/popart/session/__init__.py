"""Sessions: a model with its weights on a device, which runs and trains."""

# Programs catch it by this name, too.
from ..errors import OutOfMemoryException
from .sessions import InferenceSession, TrainingSession
