"""Horovod's service for data sets, which is not available."""

raise ImportError(
    "popdist's stand-in for horovod has no horovod.tensorflow.data, Horovod's service "
    "that prepares data on other hosts. Give each instance its share of the data: "
    "dataset.shard(hvd.size(), hvd.rank()).",
    name=__name__,
)
