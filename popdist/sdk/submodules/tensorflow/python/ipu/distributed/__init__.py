"""Collectives between the instances of a job, by popdist."""

from popdist.tensorflow import allgather, allreduce, broadcast

from ..refusals import add_modules
from . import popdist_strategy

add_modules(__name__)
