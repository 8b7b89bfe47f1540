"""Options.TensorLocations: the memory of tensors, recorded only."""

from typing import Self

from ..errors import require, require_poptorch, require_type
from .option_values import OptionValues

FEWEST_TILES, MOST_TILES = 32, 192


class TensorLocationSettings(OptionValues):
    """Where one kind of tensor is stored."""

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Record from which size on a tensor may be stored off the chip."""
        return self._record("minElementsForOffChip", min_elements, int)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Record from which size on replicas may share a tensor."""
        return self._record("minElementsForReplicatedTensorSharding", min_elements, int)

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Record whether tensors are stored on the chip; None: it is left open."""
        if use is None:
            self.deleteIfExists("onChip")
            return self
        return self._record("onChip", use, bool)

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Record whether each replica stores a part of each tensor."""
        return self._record("useReplicatedTensorSharding", use, bool)

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Record whether IO tiles load tensors."""
        return self._record("useIOTilesToLoad", use, bool)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Record whether IO tiles store tensors."""
        return self._record("useIOTilesToStore", use, bool)

    def _record(self, name: str, value: int, kind: type) -> Self:
        require_type(name, value, kind)
        return self.createOrSet(**{name: int(value)})


class _TensorLocationOptions(OptionValues):
    """Where each kind of tensor is stored."""

    def numIOTiles(self, num_tiles: int) -> Self:
        """Record how many tiles of an IPU do IO instead of computing."""
        require(
            isinstance(num_tiles, int)
            and FEWEST_TILES <= num_tiles <= MOST_TILES
            and num_tiles % 2 == 0,
            "numIOTiles must be an even number between 32 and 192.",
        )
        return self.createOrSet(numIOTiles=num_tiles)

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Record where activations are stored."""
        return self._set_location("location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Record where weights are stored."""
        return self._set_location("location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Record where the optimizer's state is stored."""
        return self._set_location("location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Record where accumulated gradients are stored."""
        return self._set_location("location_accumulator", location)

    def _set_location(self, name: str, location: TensorLocationSettings) -> Self:
        require_poptorch(location, TensorLocationSettings)
        return self.createOrSet(**{name: location.toDict()})
