"""The specification is checked against values that were worked out by hand."""

import math
import warnings
from dataclasses import dataclass
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from popdist.engine.spec import reference
from popdist.engine.spec.reference import all_reduce

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")] + [BFLOAT16]
WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Term:
    """Shows in which order it was combined: what `+` made stands in brackets."""

    text: str

    def __add__(self, other: "Term") -> "Term":
        return Term(f"({self.text}+{other.text})")


def terms(count: int, length: int = 1) -> np.ndarray:
    rows = np.empty((count, length), dtype=object)
    for number in range(count):
        rows[number] = Term(str(number))
    return rows


def column(*values: float, dtype: object) -> list[np.ndarray]:
    """Make one member for each value, with one row of one element."""
    return [np.array([[value]], dtype=dtype) for value in values]


def bits(array: np.ndarray) -> list[int]:
    return array.view(WORDS[array.itemsize]).tolist()


def from_bits(words: list[int], dtype: np.dtype) -> np.ndarray:
    return np.array(words, WORDS[dtype.itemsize]).view(dtype)


def split(rows: np.ndarray, cuts: set[int]) -> list[np.ndarray]:
    inner = sorted(cut for cut in cuts if cut < len(rows))
    return [rows[a:b] for a, b in pairwise([0, *inner, len(rows)])]


@pytest.mark.parametrize(
    ("count", "order"),
    [
        (1, "0"),
        (2, "(0+1)"),
        (3, "((0+1)+2)"),
        (4, "((0+1)+(2+3))"),
        (5, "(((0+1)+(2+3))+4)"),
        (6, "(((0+1)+(2+3))+(4+5))"),
        (7, "(((0+1)+(2+3))+((4+5)+6))"),
        (8, "(((0+1)+(2+3))+((4+5)+(6+7)))"),
        (11, "((((0+1)+(2+3))+((4+5)+(6+7)))+((8+9)+10))"),
    ],
)
def test_the_tree_is_made_of_aligned_powers_of_two(count: int, order: str) -> None:
    assert reference.tree(terms(count), "sum")[0].text == order


@pytest.mark.parametrize("count", range(1, 70))
def test_the_tree_is_what_a_binary_counter_makes(count: int) -> None:
    """That is how it is made without knowing how many rows are still to come."""
    stack: list[tuple[int, Term]] = []
    for row in terms(count)[:, 0]:
        size = 1
        while stack and stack[-1][0] == size:
            row = stack.pop()[1] + row
            size *= 2
        stack.append((size, row))
    total = stack.pop()[1]
    while stack:
        total = stack.pop()[1] + total

    assert reference.tree(terms(count), "sum")[0] == total


def test_each_share_of_the_ring_begins_at_its_own_member() -> None:
    total = reference.ring(terms(3, length=48), "sum", share=16)

    assert [term.text for term in total[[0, 15, 16, 31, 32, 47]]] == [
        *2 * ["(2+(1+0))"],
        *2 * ["(0+(2+1))"],
        *2 * ["(1+(0+2))"],
    ]


def test_the_ring_cuts_every_round_anew() -> None:
    """One full round of 2 x 32, then one of 40: its shares have 32 and 8 elements."""
    total = reference.ring(terms(2, length=104), "sum", share=32)

    assert "".join("0" if t.text == "(1+0)" else "1" for t in total) == (
        32 * "0" + 32 * "1" + 32 * "0" + 8 * "1"
    )


def test_the_last_shares_of_a_short_round_are_empty() -> None:
    total = reference.ring(terms(4, length=17), "sum", share=64)

    assert [term.text for term in total] == [
        *16 * ["(3+(2+(1+0)))"],
        "(0+(3+(2+1)))",
    ]


def test_a_ring_of_one_has_nothing_to_add() -> None:
    assert reference.ring(terms(1, length=3), "sum", share=16)[2].text == "0"


def test_the_order_shows_in_float32() -> None:
    """A float32 of 1e8 does not see a 1: its neighbours are 8 away."""
    inputs = column(1e8, 1, -1e8, 1, dtype="float32")

    assert all_reduce(inputs).tolist() == [0.0]
    assert all_reduce(inputs[:3]).tolist() == [0.0]
    assert all_reduce([inputs[0], inputs[2], inputs[1]]).tolist() == [1.0]


def test_the_ring_shows_in_float32_too() -> None:
    # (-1e8 + (1 + 1e8)), (1e8 + (-1e8 + 1)), (1 + (1e8 + -1e8))
    rows = np.array([[1e8], [1], [-1e8]], "float32").repeat(48, axis=1)
    inputs = [row[None] for row in rows]

    ring = all_reduce(inputs, algorithm="ring", share=16)

    assert ring.tolist() == 16 * [0.0] + 16 * [0.0] + 16 * [1.0]
    assert all_reduce(inputs).tolist() == 48 * [0.0]


def test_in_the_ring_a_member_adds_up_its_own_rows_first() -> None:
    rows = np.array([[1], [1e8], [-1e8], [1]], "float32")

    # (-1e8 + 1) + (1 + 1e8), and 1 + (-1e8 + (1e8 + 1)).
    two_by_two = all_reduce(split(rows, {2}), algorithm="ring", share=16)
    four_by_one = all_reduce(split(rows, {1, 2, 3}), algorithm="ring", share=16)

    assert (two_by_two.tolist(), four_by_one.tolist()) == ([0.0], [1.0])


@pytest.mark.parametrize("algorithm", ["oneshot", "arena"])
def test_all_but_the_ring_add_in_the_order_of_direct(algorithm: str) -> None:
    inputs = column(1e8, 1, -1e8, 3, 7, dtype="float32")

    assert all_reduce(inputs, algorithm=algorithm).tolist() == [7.0]
    assert all_reduce(inputs, algorithm="direct").tolist() == [7.0]


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
def test_float16_is_rounded_only_at_the_end(algorithm: str) -> None:
    # A float16 of 2048 has neighbours at 2046 ... 2050: it would lose each 1.
    inputs = column(2048, 1, 1, dtype="float16")
    beyond = column(60000, 60000, -60000, dtype="float16")

    assert all_reduce(inputs, algorithm=algorithm, share=16).tolist() == [2050.0]
    assert all_reduce(beyond, algorithm=algorithm, share=16).tolist() == [60000.0]


def test_bfloat16_is_rounded_only_at_the_end() -> None:
    # A bfloat16 of 256 has its next neighbour at 258.
    total = all_reduce(column(256, 1, 1, dtype=BFLOAT16))

    assert (total.dtype, total.astype(float).tolist()) == (BFLOAT16, [258.0])


@pytest.mark.parametrize(
    ("dtype", "values", "rounded"),
    [
        ("float16", (2048, 1), 2048.0),
        ("float16", (2050, 1), 2052.0),
        (BFLOAT16, (256, 1), 256.0),
        (BFLOAT16, (258, 1), 260.0),
    ],
)
def test_the_end_is_rounded_to_nearest_and_to_even(
    dtype: object, values: tuple[float, float], rounded: float
) -> None:
    assert all_reduce(column(*values, dtype=dtype)).astype(float).tolist() == [rounded]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_sum_beyond_the_largest_is_infinite(dtype: np.dtype) -> None:
    largest = float(ml_dtypes.finfo(dtype).max)

    assert all_reduce(column(largest, largest, dtype=dtype)).tolist() == [math.inf]


@pytest.mark.parametrize(
    ("dtype", "values", "total"),
    [
        ("int8", (100, 100), -56),
        ("uint8", (200, 100), 44),
        ("int16", (32767, 1), -32768),
        ("uint16", (65535, 2), 1),
        ("int32", (-(2**31), -1), 2**31 - 1),
        ("uint32", (2**32 - 1, 1), 0),
        ("int64", (2**63 - 1, 1), -(2**63)),
        ("uint64", (2**64 - 1, 3), 2),
    ],
)
def test_sums_of_integers_wrap(dtype: str, values: tuple[int, int], total: int) -> None:
    assert all_reduce(column(*values, dtype=dtype)).tolist() == [total]


def test_products_of_integers_wrap() -> None:
    assert all_reduce(column(100, 3, dtype="int8"), "prod").tolist() == [44]


@pytest.mark.parametrize(
    ("dtype", "values", "mean"),
    [
        ("int32", (7, 0), 3),
        ("int32", (-7, 0), -3),
        ("int32", (-1, 0, 0), 0),
        ("int8", (-128,), -128),
        ("int8", (-128, 0, 0), -42),
        ("int64", (-(2**63), 0, 0), -3074457345618258602),
        ("int64", (2**63 - 1, 0), 2**62 - 1),
        # The sum wraps before it is divided.
        ("int8", (100, 100), -28),
        ("uint8", (255, 0), 127),
        ("uint8", (200, 200), 72),
        ("uint64", (2**64 - 1, 0, 0), 6148914691236517205),
    ],
)
def test_means_of_integers_are_cut_towards_zero(
    dtype: str, values: tuple[int, ...], mean: int
) -> None:
    total = all_reduce(column(*values, dtype=dtype), "mean")

    assert (total.dtype, total.tolist()) == (np.dtype(dtype), [mean])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_mean_over_more_replicas_than_the_type_can_count(dtype: str) -> None:
    """In these types 257 would be 1."""
    rows = np.zeros((257, 1), dtype)
    rows[0] = 127

    assert all_reduce([rows], "mean").tolist() == [0]


def test_means_of_floats_are_divided_and_not_multiplied_by_the_inverse() -> None:
    # 1 / 41 is not a float32, and 41 times its nearest is not 1.
    rows = np.ones((41, 1), "float32")

    assert all_reduce([rows], "mean").tolist() == [1.0]


def test_the_mean_of_float16_is_divided_before_it_is_rounded() -> None:
    # 120000 is not a float16.
    assert all_reduce(column(60000, 60000, dtype="float16"), "mean").tolist() == [
        60000.0
    ]


@pytest.mark.parametrize(
    ("op", "truth"),
    [
        ("sum", [False, True, True, True]),
        ("max", [False, True, True, True]),
        ("prod", [False, False, False, True]),
        ("min", [False, False, False, True]),
    ],
)
def test_bools_are_combined_with_or_and_and(op: str, truth: list[bool]) -> None:
    rows = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], bool)

    total = all_reduce([rows], op)

    assert (total.dtype, total.tolist()) == (np.dtype(bool), truth)


@pytest.mark.parametrize("op", ["sum", "max", "prod", "min"])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_every_byte_that_is_true_becomes_1(op: str, replicas: int) -> None:
    row = np.array([0, 1, 2, 128, 255], np.uint8)
    rows = np.stack([row] * replicas).view(bool)

    assert all_reduce([rows], op).view(np.uint8).tolist() == [0, 1, 1, 1, 1]


def test_bytes_without_a_common_bit_are_both_true() -> None:
    rows = np.array([[1], [2]], np.uint8).view(bool)

    assert all_reduce([rows], "prod").view(np.uint8).tolist() == [1]


def test_the_sum_that_a_mean_divides_wraps() -> None:
    assert all_reduce(column(100, 100, dtype="int8"), "mean").tolist() == [-28]


def test_the_mean_of_bool_is_refused() -> None:
    with pytest.raises(TypeError, match="mean of bool"):
        all_reduce([np.ones((2, 1), bool)], "mean")


@pytest.mark.parametrize(
    ("op", "a", "b", "sign"),
    [
        ("sum", -0.0, -0.0, -1.0),
        ("sum", -0.0, 0.0, 1.0),
        ("prod", -0.0, 1.0, -1.0),
        ("mean", -0.0, -0.0, -1.0),
        # -0.0 is less than 0.0, in whatever order they come.
        ("min", 0.0, -0.0, -1.0),
        ("min", -0.0, 0.0, -1.0),
        ("max", 0.0, -0.0, 1.0),
        ("max", -0.0, 0.0, 1.0),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zeros_have_a_sign(
    dtype: np.dtype, op: str, a: float, b: float, sign: float
) -> None:
    total = all_reduce(column(a, b, dtype=dtype), op).astype(float)

    assert (total.tolist(), np.copysign(1, total).tolist()) == ([0.0], [sign])


def test_the_order_of_the_ring_does_not_matter_to_the_least_zero() -> None:
    inputs = column(0.0, -0.0, dtype="float32")

    # Chunk 0 begins at member 0, so member 1 compares its -0.0 with the 0.0 that came.
    for op, least in (("min", 0x80000000), ("max", 0x00000000)):
        ring = all_reduce(inputs, op, algorithm="ring", share=16)
        assert bits(ring) == bits(all_reduce(inputs, op)) == [least]


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_nan_wins_wherever_it_stands(op: str, place: int) -> None:
    values = [1.0, 2.0]
    values.insert(place, math.nan)

    assert bits(all_reduce(column(*values, dtype="float64"), op)) == [0x7FF8 << 48]


@pytest.mark.parametrize(("op", "value"), [("min", -2.5), ("max", 9.0)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_least_and_the_greatest(dtype: np.dtype, op: str, value: float) -> None:
    inputs = column(4, -2.5, 9, 0, 1, dtype=dtype)

    assert all_reduce(inputs, op).astype(float).tolist() == [value]


NANS = [
    (np.dtype("float16"), [0xFE01, 0x7C01, 0xFFFF], 0x7E00),
    (np.dtype("float32"), [0xFFC12345, 0x7F800001, 0xFFFFFFFF], 0x7FC00000),
    (np.dtype("float64"), [0xFFF8 << 48, 0x7FF0000000000001], 0x7FF8000000000000),
    (BFLOAT16, [0xFFC1, 0x7F81, 0xFFFF], 0x7FC0),
]


@pytest.mark.parametrize("op", ["sum", "min", "max", "prod", "mean"])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(("dtype", "nans", "canonical"), NANS, ids=str)
def test_every_nan_comes_out_quiet_positive_and_empty(
    dtype: np.dtype, nans: list[int], canonical: int, replicas: int, op: str
) -> None:
    rows = np.stack([from_bits(nans, dtype)] * replicas)

    assert bits(all_reduce([rows], op)) == len(nans) * [canonical]


@pytest.mark.parametrize(("dtype", "nans", "canonical"), NANS, ids=str)
def test_so_does_one_that_arises(
    dtype: np.dtype, nans: list[int], canonical: int
) -> None:
    opposites = column(math.inf, -math.inf, dtype=dtype)

    assert bits(all_reduce(opposites)) == [canonical]
    assert bits(all_reduce(opposites, algorithm="ring", share=16)) == [canonical]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_subnormal_numbers_are_kept(dtype: np.dtype) -> None:
    rows = from_bits([1, 2, 5], dtype)[:, None]

    assert bits(all_reduce([rows])) == [8]
    assert bits(all_reduce([rows[:1]])) == [1]


def test_the_result_shares_no_memory_with_an_input() -> None:
    rows = np.array([[1.0, 2.0]])

    assert not np.shares_memory(all_reduce([rows]), rows)


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
def test_nothing_reduces_to_nothing(algorithm: str) -> None:
    inputs = 3 * [np.zeros((2, 0), "float16")]

    total = all_reduce(inputs, algorithm=algorithm, share=16)

    assert (total.shape, total.dtype) == ((0,), np.dtype("float16"))


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ValueError, match="algorithm is 'star'") as refusal:
        all_reduce(column(1, dtype="int8"), algorithm="star")

    assert str(refusal.value) == (
        "The algorithm is 'star', but must be direct, oneshot, arena, ring."
    )


@pytest.mark.parametrize("share", [None, 0])
def test_a_ring_without_segments_is_refused(share: int | None) -> None:
    with pytest.raises(ValueError, match=f"share is {share}, but must be 1"):
        all_reduce(column(1, dtype="int8"), algorithm="ring", share=share)


def test_members_with_different_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match="array is int8, another's int16"):
        all_reduce([np.zeros((1, 1), "int8"), np.zeros((1, 1), "int16")])


ROWS = st.integers(1, 13).flatmap(
    lambda count: st.integers(0, 5).map(lambda length: (count, length))
)
OPERATIONS = st.sampled_from(["sum", "min", "max", "prod", "mean"])


@given(st.data(), st.sampled_from(FLOATS), OPERATIONS, st.sets(st.integers(1, 12)))
def test_the_same_replicas_give_the_same_bits_for_every_split(
    data: st.DataObject, dtype: np.dtype, op: str, cuts: set[int]
) -> None:
    word = np.dtype(WORDS[dtype.itemsize])
    rows = data.draw(st_numpy.arrays(word, ROWS)).view(dtype)

    assert bits(all_reduce(split(rows, cuts), op)) == bits(all_reduce([rows], op))


@given(st.data(), st.sampled_from(INTEGERS), st.sets(st.integers(1, 12)))
def test_sums_of_integers_are_exact_but_for_what_wraps(
    data: st.DataObject, dtype: str, cuts: set[int]
) -> None:
    rows = data.draw(st_numpy.arrays(dtype, ROWS))
    # Python's integers do not wrap, so they are cut to the type by hand.
    width, least = 2 ** (8 * rows.itemsize), int(np.iinfo(dtype).min)
    exact = [(sum(values) - least) % width + least for values in rows.T.tolist()]

    inputs = split(rows, cuts)

    assert all_reduce(inputs).tolist() == exact
    assert all_reduce(inputs, algorithm="ring", share=1).tolist() == exact


@given(st.data(), st.sampled_from(INTEGERS))
def test_means_of_integers_are_the_exact_quotient_cut_towards_zero(
    data: st.DataObject, dtype: str
) -> None:
    rows = data.draw(st_numpy.arrays(dtype, ROWS))
    totals = all_reduce([rows]).tolist()
    exact = [abs(total) // len(rows) * (1 if total > 0 else -1) for total in totals]

    assert all_reduce([rows], "mean").tolist() == exact


@given(
    st.data(),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["direct", "ring"]),
    st.sets(st.integers(1, 12)),
)
def test_sums_of_floats_are_near_the_exact_one(
    data: st.DataObject, dtype: str, algorithm: str, cuts: set[int]
) -> None:
    rows = data.draw(
        st_numpy.arrays(dtype, ROWS, elements=st.floats(-1e6, 1e6, width=32))
    )

    total = all_reduce(split(rows, cuts), algorithm=algorithm, share=1)

    # Each of at most 12 additions is off by half a unit in the last place.
    allowed = 12 * np.finfo(dtype).eps * np.abs(rows.astype(float)).sum(axis=0)
    exact = np.array([math.fsum(values) for values in rows.T.tolist()])
    assert np.all(np.abs(total - exact) <= allowed)


@given(st.data(), OPERATIONS, st.sets(st.integers(1, 12)), st.integers(1, 40))
def test_the_ring_equals_the_tree_where_the_order_does_not_matter(
    data: st.DataObject, op: str, cuts: set[int], share: int
) -> None:
    rows = data.draw(
        st_numpy.arrays("int16", st.tuples(st.integers(1, 9), st.just(99)))
    )

    inputs = split(rows, cuts)

    assert (
        all_reduce(inputs, op, algorithm="ring", share=share).tolist()
        == all_reduce(inputs, op).tolist()
    )


@given(st.data(), st.sampled_from(FLOATS), OPERATIONS)
def test_no_warning_of_numpy_escapes(
    data: st.DataObject, dtype: np.dtype, op: str
) -> None:
    word = np.dtype(WORDS[dtype.itemsize])
    rows = data.draw(st_numpy.arrays(word, ROWS)).view(dtype)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        all_reduce([rows], op)
        all_reduce([rows, rows], op, algorithm="ring", share=1)

    assert caught == []


# Two members with three replicas: 0 and 1 belong to the first.
SIX = [
    np.array([[0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]]),
    np.array([[20, 21, 22, 23, 24, 25]]),
]


def shown(outputs: list[np.ndarray]) -> list[list[list[int]]]:
    return [output.tolist() for output in outputs]


def test_reduce_scatter_gives_each_replica_its_block() -> None:
    assert shown(reference.reduce_scatter(SIX)) == [
        [[30, 33], [36, 39]],
        [[42, 45]],
    ]
    assert shown(reference.reduce_scatter(SIX, "max")) == [
        [[20, 21], [22, 23]],
        [[24, 25]],
    ]


def test_reduce_scatter_of_members_with_one_row_each() -> None:
    flat = [np.array([[1, 2]]), np.array([[10, 20]])]

    assert shown(reference.reduce_scatter(flat)) == [[[11]], [[22]]]


def test_reduce_scatter_knows_who_owns_how_many_replicas() -> None:
    inputs = [np.array([[1, 2, 3, 4, 5, 6]] * rows) for rows in (1, 3, 2)]

    assert shown(reference.reduce_scatter(inputs)) == [
        [[6]],
        [[12], [18], [24]],
        [[30], [36]],
    ]


def test_all_gather_puts_the_rows_one_after_the_other() -> None:
    assert reference.all_gather([rows[:, :2] for rows in SIX]).tolist() == [
        *[0, 1, 10, 11, 20, 21]
    ]


def test_all_gather_takes_rows_of_unequal_lengths() -> None:
    inputs = [[np.array([1, 2, 3]), np.array([], int)], np.array([[4]])]

    assert reference.all_gather(inputs).tolist() == [1, 2, 3, 4]


def test_gather_gives_the_root_the_same() -> None:
    assert reference.gather([rows[:, :1] for rows in SIX]).tolist() == [0, 10, 20]


@pytest.mark.parametrize(("root", "first"), [(0, 0), (1, 10), (2, 20)])
def test_broadcast_gives_the_row_of_the_root(root: int, first: int) -> None:
    assert reference.broadcast(SIX, root).tolist() == list(range(first, first + 6))


def test_scatter_gives_each_replica_its_block_of_the_row_of_the_root() -> None:
    assert shown(reference.scatter(SIX, 1)) == [[[10, 11], [12, 13]], [[14, 15]]]


def test_all_to_all_gives_each_replica_its_block_of_every_row() -> None:
    assert shown(reference.all_to_all(SIX)) == [
        [[0, 1, 10, 11, 20, 21], [2, 3, 12, 13, 22, 23]],
        [[4, 5, 14, 15, 24, 25]],
    ]


@pytest.mark.parametrize("moving", ["all_gather", "all_to_all"])
def test_exchanged_arrays_keep_their_bits(moving: str) -> None:
    nan = from_bits([0xFFC12345], np.dtype("float32"))[None]

    assert np.ravel(getattr(reference, moving)([nan])).view(np.uint32) == [0xFFC12345]


def test_a_row_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="row of 5") as refusal:
        reference.reduce_scatter([rows[:, :5] for rows in SIX])

    assert str(refusal.value) == (
        "A row of 5 elements cannot be cut into 3 equal shares, one for each replica. "
        "Make its length a multiple of 3."
    )


def test_rows_without_elements_are_cut_into_blocks_without_elements() -> None:
    outputs = reference.reduce_scatter([rows[:, :0] for rows in SIX])

    assert [output.shape for output in outputs] == [(2, 0), (1, 0)]
