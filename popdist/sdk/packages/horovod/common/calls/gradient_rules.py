"""The gradients of Horovod's calls, for the tensors of any framework."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from popdist.negotiation.call_requests import Kind

from .reduce_ops import Adasum, Average, Reduction, Sum
from .submission import CallArguments, Tensor

_WITH_GRADIENTS = {
    Kind.ALLREDUCE: (Sum, Average, Adasum),
    Kind.REDUCESCATTER: (Sum, Average),
}


class GradientFunctions(NamedTuple):
    """Functions of a framework for gradients.

    call: Makes a call on tensors, and returns its results.
    lengths: Returns the first dimensions of a call's inputs, as a tensor of one row.
    add_rows: Returns the sum over the first dimension of a tensor.
    zeros: Returns zeros like a result, for which a graph computes the result.
    padded: Returns a gradient with the shape of an input: zeros follow it.
    without_gradient: What a program gives in place of a tensor, if it needs no
        gradient.
    """

    call: Callable[[CallArguments, Sequence[Tensor]], Any]
    lengths: Callable[[Sequence[Any]], Tensor]
    add_rows: Callable[[Tensor], Tensor]
    zeros: Callable[[Tensor], Tensor]
    padded: Callable[[Tensor, Any], Tensor]
    without_gradient: str


def gradients_of(
    arguments: CallArguments,
    functions: GradientFunctions,
    grads: Sequence[Tensor],
    inputs: Sequence[Any],
    results: Sequence[Tensor],
) -> Sequence[Tensor]:
    """Return the gradients of a call's tensors, by calls among the same ranks.

    The derivative of an allgather and of a broadcast, which the ranks compute together,
    would be the sum of the ranks' gradients. Horovod 0.28 averages.

    Args:
        arguments: The arguments of the call.
        functions: The framework's.
        grads: The gradients of the results.
        inputs: The tensors, or whatever the functions take for them.
        results: The results; an alltoall's end with the numbers of received rows.
    """
    kind, _, process_set, reduction, *_ = arguments
    if reduction.op not in _WITH_GRADIENTS.get(kind, (Average,)):
        raise RuntimeError(
            f"{kind.text} with op={reduction.op.name} has no gradient. Use Sum or "
            f"Average where one is needed, or give {functions.without_gradient}."
        )
    same = arguments._replace(name=None)
    gather = CallArguments(Kind.ALLGATHER, None, process_set)
    match kind:
        case Kind.ALLREDUCE:
            reduced: list[Tensor] = functions.call(same, grads)
            return reduced
        case Kind.REDUCESCATTER:
            factor = _factor_of_scatter(reduction, process_set.size() or 1)
            gathered: list[Tensor] = functions.call(gather, [g * factor for g in grads])
            return gathered
        case Kind.ALLTOALL:
            back = same._replace(splits=results[-1])
            returned, _ = functions.call(back, grads[:1])
            # Rows that went nowhere have no gradient.
            return [functions.padded(returned, inputs[0])]
    average = CallArguments(Kind.ALLREDUCE, None, process_set)
    if kind is Kind.BROADCAST:
        averages = functions.call(average, grads)
        ranks = process_set.ranks or []
        if ranks[process_set.rank() or 0] == arguments.root_rank:
            return list(averages)
        return [functions.zeros(each) for each in averages]
    lengths = functions.lengths(inputs)
    (each_rank,) = functions.call(gather, [lengths])
    starts = functions.add_rows(each_rank[: process_set.rank()])
    return [
        whole[starts[i] : starts[i] + lengths[0, i]]
        for i, whole in enumerate(functions.call(average, grads))
    ]


def _factor_of_scatter(reduction: Reduction, ranks: int) -> float:
    """Return the factor of gathered gradients of a reducescatter.

    As in Horovod, they are multiplied by the number of ranks for a Sum, and keep the
    values of the ranks for an Average.
    """
    factor = reduction.prescale * reduction.postscale
    return factor * ranks if reduction.op is Sum else factor
