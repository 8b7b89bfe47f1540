import pytest

from popdist.durations import read_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("5", 5.0),
        ("0.25", 0.25),
        (".5", 0.5),
        ("2.", 2.0),
        ("250ms", 0.25),
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("2d", 172800.0),
        ("1d2h3m4s5ms", 93784.005),
        ("0s", 0.0),
        ("9" * 400, float("inf")),
    ],
)
def test_a_duration_is_seconds_or_has_units(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ".",
            ".s",
            "m",
            "5x",
            "5M",
            "5 m",
            "5\n",
            "-1",
            "+1",
            "1e3",
            "nan",
            "inf",
        ),
        *("1_0", "\u0665", "\u0665s", "30m1h", "1m1m", "1h30", "1ms500", "1:30"),
    ],
)
def test_other_texts_are_no_durations(text: str) -> None:
    assert read_duration(text) is None
