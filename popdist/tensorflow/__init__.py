"""TensorFlow's tensors and strategies on popdist's collectives.

Importing it imports TensorFlow.
"""

try:
    import tensorflow  # noqa: F401  (what all of its modules need)
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "popdist.tensorflow needs tensorflow, which is not installed. Install it from "
        "poprun's source folder: pip install '.[tensorflow]'",
        name="tensorflow",
    ) from None
