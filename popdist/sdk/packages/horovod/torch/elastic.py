"""The names of elastic Horovod, which raise an error: it is not available."""

from ..common.elastic import refused

ElasticSampler = refused(__name__, "ElasticSampler")
ObjectState = refused(__name__, "ObjectState")
State = refused(__name__, "State")
TorchState = refused(__name__, "TorchState")
run = refused(__name__, "run")
