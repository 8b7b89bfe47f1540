import popart
import poptorch

# As in PopTorch's documentation of Options._Popart, whose values are numbers.
PIPELINE, RANDOM_NORMAL = 3, 2


def test_options_take_the_numbers_of_popart() -> None:
    options = poptorch.Options()

    options._Popart.set("autoRecomputation", int(popart.RecomputationType.Pipeline))
    options.enableSyntheticData(int(popart.SyntheticDataMode.RandomNormal))

    assert options._Popart.options["autoRecomputation"] == PIPELINE
    assert options._Popart.options["syntheticDataMode"] == RANDOM_NORMAL


def test_the_default_level_of_patterns_is_that_of_popart() -> None:
    options = poptorch.Options()

    options._Popart.setPatterns({"InPlace": True})

    level = options._Popart.options["patterns_level"]
    assert popart.PatternsLevel(level) is popart.PatternsLevel.Default
