"""Sessions: a model with its weights on a device, which runs and trains."""

from .sessions import InferenceSession, TrainingSession
