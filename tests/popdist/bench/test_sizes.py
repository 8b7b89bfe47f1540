"""How sizes are written, and which of them are measured."""

import argparse

import pytest

from popdist.bench import sizes


def test_sizes_are_read_with_powers_of_1024() -> None:
    assert sizes.parse("4, 1K,64m,2G") == (4, 1024, 67_108_864, 2_147_483_648)


@pytest.mark.parametrize("word", ["", "0", "K", "1.5K", "-4", "4KB", "x", "²"])
def test_malformed_sizes_are_refused_with_an_example(word: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        sizes.parse(f"4,{word}")

    assert str(refusal.value) == (
        f"{word!r} is not a size. A size is a whole number of bytes above 0, "
        "optionally with K, M or G for powers of 1024, as in 4,1K,64M."
    )


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(4, "4"), (1000, "1000"), (1024, "1K"), (1536, "1536"), (256 << 20, "256M")],
)
def test_a_size_is_shown_as_it_is_written(nbytes: int, text: str) -> None:
    assert sizes.in_short(nbytes) == text


def test_the_default_is_from_4_bytes_to_256_mib() -> None:
    shown = " ".join(sizes.in_short(n) for n in sizes.DEFAULT)

    assert shown == "4 16 64 256 1K 4K 16K 64K 256K 1M 4M 16M 64M 256M"


def test_a_size_that_needs_more_than_half_of_the_memory_is_left_out_in_words() -> None:
    fit, sentences = sizes.fitting(
        [4, 64 << 20, 256 << 20], members=8, copies=4, available=8 << 30
    )

    assert fit == [4, 64 << 20]
    assert sentences == [
        "256M is left out: 8 members would need 8 GiB for it, and only half of the "
        "8 GiB that are free may be used. Start fewer instances to measure it."
    ]


def test_all_default_sizes_fit_8_members_on_a_machine_of_24_gib() -> None:
    fit, sentences = sizes.fitting(sizes.DEFAULT, 8, sizes.COPIES, 22 << 30)

    assert (fit, sentences) == (list(sizes.DEFAULT), [])
