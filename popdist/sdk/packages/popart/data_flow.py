"""The tensors that one call returns, and their batches."""

from collections.abc import Mapping, Sequence

from .enums import AnchorReturnTypeId, ExchangeStrategy, TileSet
from .errors import popart_exception

_IDS = {member.name.upper(): member for member in AnchorReturnTypeId}


class InputSettings:
    """How an input or an anchor is handed over: recorded, and without effect."""

    def __init__(
        self,
        tileSet: TileSet = TileSet.Compute,
        exchangeStrategy: ExchangeStrategy = ExchangeStrategy.JustInTime,
    ) -> None:
        self._tile_set, self._strategy = tileSet, exchangeStrategy

    def tileSet(self) -> TileSet:
        """Return which tiles get or give it."""
        return self._tile_set

    def exchangeStrategy(self) -> ExchangeStrategy:
        """Return when it is handed over."""
        return self._strategy


class AnchorReturnType(InputSettings):
    """The batches of a step that an anchor holds values for."""

    def __init__(
        self,
        anchorReturnTypeString: str,
        returnPeriod: int | None = None,
        tileSet: TileSet = TileSet.Compute,
        exchangeStrategy: ExchangeStrategy = ExchangeStrategy.JustInTime,
    ) -> None:
        """Make one.

        Args:
            anchorReturnTypeString: "All", "EveryN", "Final" or "Sum", in any case.
            returnPeriod: The N of EveryN.
            tileSet: Without effect.
            exchangeStrategy: Without effect.

        Raises:
            popart_exception: There is no such type, or the period does not fit.
        """
        name = anchorReturnTypeString.upper()
        if name not in _IDS:
            raise popart_exception(
                f"Invalid anchor return type ID supplied: {anchorReturnTypeString}"
            )
        every = _IDS[name] == AnchorReturnTypeId.EveryN
        if every and returnPeriod is None:
            raise popart_exception("Must specify return period with option 'EVERYN'")
        if not every and returnPeriod is not None:
            raise popart_exception(
                "A return period should not be supplied for this anchor return type"
            )
        if returnPeriod is not None and returnPeriod < 1:
            raise popart_exception("Anchor return period must be greater than zero")
        super().__init__(tileSet, exchangeStrategy)
        self._id, self._period = _IDS[name], returnPeriod
        # The N of EveryN, 1 for other types.
        self.period = returnPeriod or 1

    def id(self) -> AnchorReturnTypeId:
        """Return which of the types this is."""
        return self._id

    def rp(self) -> int:
        """Return the return period of EveryN.

        Raises:
            popart_exception: It is another type.
        """
        if self._period is None:
            raise popart_exception(
                "A return period should not be supplied for this anchor return type"
            )
        return self._period

    def __repr__(self) -> str:
        period = "" if self._period is None else f", {self._period}"
        return f"AnchorReturnType({self._id.name!r}{period})"


class DataFlow:
    """How many batches one call runs, and which tensors it returns."""

    def __init__(
        self,
        batchesPerStep: int = 0,
        anchorTensors: Mapping[str, AnchorReturnType] | Sequence[str] = (),
        anchorReturnType: AnchorReturnType | None = None,
    ) -> None:
        """Make one.

        Args:
            batchesPerStep: When training, the number of weight updates.
            anchorTensors: The names of the tensors, with the type of return for each.
            anchorReturnType: The type, if `anchorTensors` has none; None for All.
        """
        self._batches = batchesPerStep
        if isinstance(anchorTensors, Mapping):
            self._anchors = dict(anchorTensors)
        else:
            common = anchorReturnType or AnchorReturnType("All")
            self._anchors = dict.fromkeys(anchorTensors, common)
        for name, kind in self._anchors.items():
            if batchesPerStep % kind.period:
                raise popart_exception(
                    f"The return period of anchor {name} is {kind.period}, which does "
                    f"not divide batchesPerStep ({batchesPerStep})."
                )

    def batchesPerStep(self) -> int:
        """Return how many batches one call runs."""
        return self._batches

    def setBatchesPerStep(self, batchesPerStep: int) -> None:
        """Set how many batches one call runs."""
        self._batches = batchesPerStep

    def anchors(self) -> list[str]:
        """Return the names of the tensors that a call returns."""
        return list(self._anchors)

    def nAnchors(self) -> int:
        """Return how many tensors a call returns."""
        return len(self._anchors)

    def isAnchored(self, id: str) -> bool:
        """Return whether a call returns a tensor."""
        return id in self._anchors

    def art(self, id: str) -> AnchorReturnType:
        """Return the batches that a call returns a tensor for."""
        if id not in self._anchors:
            raise popart_exception(f"{id} is not an anchor of this DataFlow.")
        return self._anchors[id]
