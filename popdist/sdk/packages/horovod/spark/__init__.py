"""Horovod on Spark, which only says that it is not there."""

raise ImportError(
    "horovod.spark is not available: this Horovod starts no processes in Spark's "
    "executors, and has no estimators. Write the data to files, and start the function "
    "that horovod.spark.run() calls as a program of its own: poprun --num-instances "
    "N --host HOST:N,... python program.py",
    name="horovod.spark",
)
