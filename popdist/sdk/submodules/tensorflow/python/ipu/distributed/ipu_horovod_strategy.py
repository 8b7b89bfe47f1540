"""IPUHorovodStrategy, which refuses."""

from ..refusals import refused

_REASON = "use distributed.popdist_strategy.PopDistStrategy under poprun."
IPUHorovodStrategy = refused("IPUHorovodStrategy", _REASON)
IPUHorovodStrategyV1 = refused("IPUHorovodStrategyV1", _REASON)
