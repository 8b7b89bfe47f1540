"""Options.Jit."""

from typing import Self

from .option_values import OptionValues


class _JitOptions(OptionValues):
    """How a model becomes a graph: recorded, as the CPU runs the model itself."""

    def __init__(self) -> None:
        super().__init__(trace_model=True)

    def traceModel(self, trace_model: bool) -> Self:
        """Record whether the model is traced by torch.jit.trace."""
        return self.set(trace_model=trace_model)
