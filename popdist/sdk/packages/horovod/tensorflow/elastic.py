"""The names of elastic Horovod, which raise an error: it is not available."""

from ..common.elastic import refused

ObjectState = refused(__name__, "ObjectState")
State = refused(__name__, "State")
TensorFlowKerasState = refused(__name__, "TensorFlowKerasState")
TensorFlowState = refused(__name__, "TensorFlowState")
run = refused(__name__, "run")
