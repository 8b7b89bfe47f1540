import copy
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import poptorch


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "POPTORCH_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_defaults_are_those_of_the_documents() -> None:
    options = poptorch.Options()

    assert options.replication_factor == 1
    assert options.device_iterations == 1
    assert options.broadcast_buffers is True
    assert options.input_group_size == 1
    assert options.auto_round_num_ipus is False
    assert options.log_dir == "."
    assert options.max_repeat_logs == 4
    assert options.output_return_period == 1
    assert options.defaultOutputMode()
    assert options.connection_type == poptorch.ConnectionType.Always
    assert options.sync_pattern == poptorch.SyncPattern.Full
    assert options.Training.gradient_accumulation == 1
    training = options.Training
    assert (
        training.accumulation_and_replication_reduction_type
        == poptorch.ReductionType.Mean
    )
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (0, 1)


def test_methods_return_what_they_were_called_on() -> None:
    options = poptorch.Options()

    assert options.deviceIterations(3).replicationFactor(2).logDir("x") is options
    assert options.Training.gradientAccumulation(4) is options.Training
    assert options.Precision.setPartialsType(torch.half) is options.Precision
    assert options.TensorLocations.numIOTiles(64) is options.TensorLocations
    assert options._Popart.set("a", 1).setPatterns({"b": True}) is options._Popart
    assert options.Jit.traceModel(False) is options.Jit
    assert options.Distributed.configureProcessId(1, 4) is options.Distributed
    assert (options.device_iterations, options.replication_factor) == (3, 2)


SETTERS: list[Callable[[Any], Any]] = [
    lambda o: o.deviceIterations(2),
    lambda o: o.Training.gradientAccumulation(2),
    lambda o: o.Training.setConvolutionDithering(True),
    lambda o: o.Precision.enableStochasticRounding(True),
    lambda o: o.TensorLocations.numIOTiles(32),
    lambda o: o.Distributed.configureProcessId(0, 1),
    lambda o: o.Distributed.disable(),
    lambda o: o.Jit.traceModel(False),
    lambda o: o._Popart.set("key", 1),
    lambda o: o.showCompilationProgressBar(False),
    lambda o: o.setExecutionStrategy(poptorch.ShardedExecution()),
    lambda o: o.anchorTensor("a", "b"),
    lambda o: o.maxRepeatLogs(None),
    lambda o: o.randomSeed(1),
    lambda o: o.enableExecutableCaching("x"),
    lambda o: o.appendToLocationExcludes("x"),
    lambda o: setattr(o, "device_iterations", 2),
]


@pytest.mark.parametrize("setter", SETTERS)
def test_frozen_options_refuse_each_change_and_stay_as_they_are(
    setter: Callable[[Any], Any],
) -> None:
    options = poptorch.Options()
    options._freeze()
    before, state = repr(options), torch.get_rng_state()

    with pytest.raises(AttributeError, match=r"^Can't modify frozen Options$"):
        setter(options)

    assert repr(options) == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("setter", SETTERS)
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, poptorch.Options.clone], ids=["deepcopy", "clone"]
)
def test_a_copy_is_not_frozen_and_shares_nothing(
    setter: Callable[[Any], Any], copied: Callable[[Any], Any]
) -> None:
    options = poptorch.Options()
    options._freeze()
    before = repr(options)

    other = copied(options)

    assert repr(other) == before
    setter(other)
    assert repr(options) == before


def test_a_copy_of_training_options_sets_popart_options_of_its_own() -> None:
    options = poptorch.Options()
    other = options.clone()

    other.Training.setAutomaticLossScaling(True)
    other.Precision.setPartialsType(torch.float)
    other.Training.setConvolutionDithering(True)

    assert other._Popart.options["automaticLossScalingSettings.enabled"] is True
    assert other._Popart.options["convolutionOptions"] == {
        "partialsType": "float",
        "enableConvDithering": True,
    }
    assert "convolutionOptions" not in options._Popart.options


def test_pickled_options_are_the_same_and_as_frozen() -> None:
    options = poptorch.Options().randomSeed(3).deviceIterations(4)
    options.Training.gradientAccumulation(2)
    options._freeze()

    other = pickle.loads(pickle.dumps(options))

    assert repr(other) == repr(options)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        other.Training.gradientAccumulation(1)


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(AssertionError) as refusal:
        poptorch.Options().deviceIterations("4")

    assert str(refusal.value) == (
        "Unexpected type <class 'str'> for option device_iterations: "
        "it must be a <class 'int'>."
    )


def test_unknown_names_are_refused() -> None:
    options = poptorch.Options()

    with pytest.raises(AssertionError, match="Invalid option"):
        options.deviceIteration = 4
    with pytest.raises(AttributeError, match="Invalid attribute random_seed"):
        options.random_seed  # noqa: B018
    assert not options.exists("random_seed")


def test_random_seed_seeds_torch_at_once() -> None:
    options = poptorch.Options().randomSeed(2022)

    assert options.random_seed == 2022
    assert torch.initial_seed() == 2022
    with pytest.raises(AssertionError):
        options.randomSeed("2022")


def test_reduction_type_is_sum_or_mean() -> None:
    training = poptorch.Options().Training
    training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)

    for wrong in (poptorch.ReductionType.NoReduction, "Mean", 1):
        with pytest.raises(
            ValueError,
            match="accumulationAndReplicationReductionType must be set to "
            r"poptorch\.ReductionType\.Mean or poptorch\.ReductionType\.Sum",
        ):
            training.accumulationAndReplicationReductionType(wrong)
    assert (
        training.accumulation_and_replication_reduction_type
        == poptorch.ReductionType.Sum
    )


@pytest.mark.parametrize("period", [None, 0, -1])
def test_every_n_needs_a_period(period: int | None) -> None:
    with pytest.raises(
        AssertionError,
        match="EveryN anchor must have output_return_period set to valid "
        "positive integer",
    ):
        poptorch.Options().outputMode(poptorch.OutputMode.EveryN, period)


def test_the_period_is_of_every_n_only() -> None:
    options = poptorch.Options().outputMode(poptorch.OutputMode.EveryN, 5)
    assert (options.output_mode, options.output_return_period) == (1, 5)

    options.outputMode(poptorch.OutputMode.All, 5)
    assert (options.output_mode, options.output_return_period) == (2, 1)


@pytest.mark.parametrize("tiles", [30, 194, 33, "64"])
def test_io_tiles_are_even_and_in_range(tiles: object) -> None:
    with pytest.raises(AssertionError, match="even number between 32 and 192"):
        poptorch.Options().TensorLocations.numIOTiles(tiles)


def test_available_memory_is_by_ipu() -> None:
    options = poptorch.Options().setAvailableMemoryProportion({"IPU12": 0.5})

    assert options.available_memory_proportion == {12: 0.5}
    with pytest.raises(AssertionError, match="given for '0', but each needs"):
        options.setAvailableMemoryProportion({"0": 0.5})


@pytest.mark.parametrize(
    ("size", "kind"),
    [
        (0, poptorch.CommGroupType.Consecutive),
        (2.0, poptorch.CommGroupType.Consecutive),
        (2, poptorch.CommGroupType.All),
        (2, 1),
    ],
)
def test_input_groups_have_a_size_and_an_arrangement(size: int, kind: Any) -> None:
    with pytest.raises(ValueError, match=r"^input_group_(size|type) is "):
        poptorch.Options().inputReplicaGrouping(size, kind)


def test_locations_are_kept_as_dictionaries() -> None:
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options = poptorch.Options()

    options.TensorLocations.setOptimizerLocation(
        settings.useReplicatedTensorSharding(True)
    )

    assert options.TensorLocations.location_optimizer == {
        "onChip": 0,
        "useReplicatedTensorSharding": 1,
    }


def test_offline_target_never_connects() -> None:
    options = poptorch.Options().useOfflineIpuTarget()

    assert options.connection_type == poptorch.ConnectionType.Never


def test_all_options_as_one_dictionary() -> None:
    options = poptorch.Options().deviceIterations(4)
    with pytest.raises(AssertionError, match="have no output mode"):
        options.toDict()

    options.outputMode(poptorch.OutputMode.Sum)
    merged = options.toDict()

    assert merged["device_iterations"] == 4
    assert merged["execution_mode"] == 0
    assert merged["output_mode"] == 3
    assert merged["rearrangeAnchorsOnHost"] is False
    assert merged["accumulation_and_replication_reduction_type"] == 1
    assert merged["num_distributed_processes"] == 1
    assert options.toDict() == merged


def test_a_model_logs_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    options = poptorch.Options().deviceIterations(2)
    options._Popart.set("engineOptions", {"a": "b"}).set("customCodelets", ["c", "d"])
    poptorch.setLogLevel("DEBUG")
    try:
        model = poptorch.inferenceModel(torch.nn.Identity(), options)
        model.compile(torch.ones(4))
    finally:
        poptorch.setLogLevel("WARN")

    logged = capsys.readouterr().err
    assert "[debug] poptorch.Options set device_iterations to value 2\n" in logged
    assert "[debug] poptorch.Options set broadcast_buffers to value true\n" in logged
    assert "[debug] poptorch.Options set engineOptions[a] to b\n" in logged
    assert "[debug] poptorch.Options added d to customCodelets\n" in logged
    assert model.options.output_mode == poptorch.OutputMode.All
    assert options.defaultOutputMode()


def test_options_as_text() -> None:
    options = poptorch.Options().replicationFactor(4)
    options.Training.gradientAccumulation(2)

    text = repr(options)

    assert text.startswith("Options(replication_factor=4, ")
    assert "Training=_TrainingOptions(gradient_accumulation=2, " in text
    assert text == repr(options.clone())


# --- The environment.


def test_a_process_of_mpirun_knows_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "12")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "11")

    distributed = poptorch.Options().Distributed

    assert (distributed.processId, distributed.numProcesses) == (11, 12)
    distributed.disable()
    assert (distributed.processId, distributed.numProcesses) == (0, 1)


def test_other_variables_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SIZE", "3")
    monkeypatch.setenv("MY_RANK", "2")

    distributed = poptorch.Options().Distributed.setEnvVarNames("MY_SIZE", "MY_RANK")

    assert (distributed.processId, distributed.numProcesses) == (2, 3)


def test_cache_folder_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/cache")

    options = poptorch.Options()

    assert options._Popart.options["cachePath"] == "/cache"
    assert options._Popart.options["enableEngineCaching"] is True
    options.enableExecutableCaching(None)
    assert options._Popart.options["enableEngineCaching"] is False


def test_defaults_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = poptorch.Options().deviceIterations(4).logDir("logs")
    expected.Training.gradientAccumulation(2)
    expected.outputMode(poptorch.OutputMode.EveryN, 3)
    expected.sourceLocationExcludes(["a", "b"]).appendToLocationExcludes("c", "d")
    expected._Popart.set("virtualGraphMode", 1)
    monkeypatch.setenv(
        "POPTORCH_DEFAULT_OPTIONS",
        '{"deviceIterations": 4, "logDir": "logs", "Training.gradientAccumulation": 2,'
        '"outputMode": ["OutputMode.EveryN", 3], "_Popart.set": ["virtualGraphMode",'
        '1], "sourceLocationExcludes": ["a", "b"], '
        '"appendToLocationExcludes": ["c", "d"]}',
    )

    options = poptorch.Options()

    assert repr(options) == repr(expected)
    assert options._source_location_excludes == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "Expecting property name"),
        ("[1]", r"'\[1\]' is not a JSON object"),
        ('{"deviceIterationz": 4}', "Invalid attribute deviceIterationz"),
        ('{"device_iterations": 4}', "Invalid attribute device_iterations: it is not"),
        ('{"deviceIterations": "4"}', "Unexpected type"),
    ],
)
def test_defaults_that_are_not_valid_are_refused(
    text: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)

    with pytest.raises((ValueError, AttributeError, AssertionError), match=error):
        poptorch.Options()


# --- Files.


def test_options_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "options.conf"
    file.write_text(
        "deviceIterations(4)\n\n# comment\n"
        "setExecutionStrategy(poptorch.ShardedExecution())\n"
        'Training.gradientAccumulation(2)\n_Popart.set("key", {"a": 1})\n'
        "outputMode(poptorch.OutputMode.EveryN, output_return_period=2)\n"
        "setAvailableMemoryProportion({'IPU0': 0.5})\n"
        "Precision.setPartialsType(torch.half)\n"
        "sourceLocationExcludes(['a', 'b'])\n"
        "TensorLocations.setWeightLocation("
        "poptorch.TensorLocationSettings().useOnChipStorage(True))\n"
    )

    options = poptorch.Options().loadFromFile(str(file))

    assert options.device_iterations == 4
    assert isinstance(options._execution_strategy, poptorch.ShardedExecution)
    assert options.Training.gradient_accumulation == 2
    assert options._Popart.options["key"] == {"a": 1}
    assert options.output_return_period == 2
    assert options.available_memory_proportion == {0: 0.5}
    assert options._Popart.options["partialsTypeMatMuls"] == "half"
    assert options._source_location_excludes == ["a", "b"]
    assert options.TensorLocations.location_weight == {"onChip": 1}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("deviceIterationz(4)", "AttributeError: Invalid attribute deviceIterationz"),
        ("deviceIterations(", "SyntaxError: '(' was never closed"),
        ("device_iterations", "SyntaxError: it is not a call"),
        ("= 4", "SyntaxError: invalid syntax"),
        ("deviceIterations(open)", "NameError: name 'open' is not defined"),
        ("deviceIterations(1 + 1)", "SyntaxError: 1 + 1 is not an argument"),
        ("deviceIterations(*[4])", "SyntaxError: *[4] is not an argument"),
    ],
)
def test_a_line_that_sets_no_option_is_named(
    line: str, error: str, tmp_path: Path
) -> None:
    file = tmp_path / "options.conf"
    file.write_text(f"deviceIterations(1)\n{line}\n")

    with pytest.raises(poptorch.options.ConfigFileError) as refusal:
        poptorch.Options().loadFromFile(file)

    kind, _, reason = error.partition(": ")
    assert str(refusal.value) == (
        f"{kind} at line 2 of options.conf: {reason}\n> options.{line}\n"
        "A line sets one option, as in: deviceIterations(4)"
    )


def test_names_of_older_releases_warn_once(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        made = poptorch.Options().anchorMode(poptorch.AnchorMode.EveryN, 3)
        made.Training.accumulationReductionType(poptorch.ReductionType.Sum)
        made.Popart.set("hardwareInstrumentations", True)

    assert made.output_mode == poptorch.OutputMode.EveryN
    assert made.output_return_period == 3
    reduction = made.Training.accumulation_and_replication_reduction_type
    assert reduction is poptorch.ReductionType.Sum
    assert made._Popart.options["hardwareInstrumentations"] is True
    lines = [line for line in capfd.readouterr().err.splitlines() if "deprec" in line]
    assert len(lines) == 3
    assert "Options.anchorMode is deprecated: use Options.outputMode" in lines[0]


def test_options_that_popart_does_not_have_are_refused_when_a_model_is_compiled() -> (
    None
):
    def compiled(name: str, value: Any) -> None:
        options = poptorch.Options().showCompilationProgressBar(False)
        options._Popart.set(name, value)
        poptorch.inferenceModel(torch.nn.Identity(), options)(torch.ones(1))

    compiled("autoRecomputation", 3)
    with pytest.raises(poptorch.Error) as unknown:
        compiled("autoRecompute", 3)
    with pytest.raises(poptorch.Error) as wrong:
        compiled("dotChecks", torch.ones(1))

    assert str(unknown.value) == (
        "Unknown PopART option autoRecompute. Give Options._Popart.set() the name of "
        "one of PopART's session options, as in "
        '_Popart.set("autoRecomputation", 3).'
    )
    assert str(wrong.value) == (
        "Unknown value type Tensor for option dotChecks. Give a bool, a number, a "
        "string, or a list or dictionary of them."
    )


def test_whole_dictionaries_of_options_are_checked() -> None:
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.useIpuModel(True).randomSeed(1).modelName("m").maxRepeatLogs(None)

    poptorch.poptorch_core._validateOptions(options.toDict())
    with pytest.raises(poptorch.Error, match="Unknown PopART option a"):
        poptorch.poptorch_core._validateOptions({**options.toDict(), "a": 1})


def test_a_model_of_an_ipu_is_logged_when_it_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "poptorch:python")
    options = poptorch.Options().showCompilationProgressBar(False).useIpuModel(False)
    poptorch.inferenceModel(torch.nn.Identity(), options)(torch.ones(1))

    assert "From the user configuration: Ipu model: Disabled" in caplog.messages
