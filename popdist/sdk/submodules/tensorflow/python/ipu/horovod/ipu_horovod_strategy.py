"""IPUHorovodStrategy, which refuses."""

from ..distributed.ipu_horovod_strategy import IPUHorovodStrategy, IPUHorovodStrategyV1

__all__ = ["IPUHorovodStrategy", "IPUHorovodStrategyV1"]
