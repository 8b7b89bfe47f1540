"""The names of elastic Horovod, which raise an error: it is not available."""

from ...common.elastic import refused

CommitStateCallback = refused(__name__, "CommitStateCallback")
KerasState = refused(__name__, "KerasState")
UpdateBatchStateCallback = refused(__name__, "UpdateBatchStateCallback")
UpdateEpochStateCallback = refused(__name__, "UpdateEpochStateCallback")
run = refused(__name__, "run")
