import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from poptorch_models import Classifier, batch, options

import poptorch
from poptorch.model.compile.executable_cache import key_of, read_or_make


class Counted(Classifier):
    runs = 0

    def forward(
        self, x: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        Counted.runs += 1
        return super().forward(x, target)


def compiled(folder: Path, rows: int = 4, scale: int = 1) -> poptorch.PoplarExecutor:
    settings = options()
    settings.enableExecutableCaching(str(folder))
    model = Counted()
    model.scale = scale
    executor = poptorch.trainingModel(model, settings)
    executor.compile(*batch(rows))
    return executor


def test_a_model_is_compiled_once(tmp_path: Path) -> None:
    Counted.runs = 0
    first, again = compiled(tmp_path / "cache"), compiled(tmp_path / "cache")

    assert Counted.runs == 1
    assert again._state.compiled == first._state.compiled
    assert again(*batch(4))[1] > 0

    # Other inputs, or another attribute, may make another model.
    Counted.runs = 0
    compiled(tmp_path / "cache", rows=6)
    compiled(tmp_path / "cache", scale=2)
    assert Counted.runs == 2


def test_a_file_that_is_damaged_is_made_anew(tmp_path: Path) -> None:
    compiled(tmp_path)
    (file,) = tmp_path.glob("*.json")
    file.write_text("{")
    Counted.runs = 0

    compiled(tmp_path)
    compiled(tmp_path)

    assert Counted.runs == 1


def test_one_of_several_makes_an_entry_while_the_others_wait(tmp_path: Path) -> None:
    begun, go, made, found = threading.Event(), threading.Event(), [], []

    def make() -> dict[str, int]:
        made.append(1)
        begun.set()
        assert go.wait(200)
        return {"ipus": 3}

    def run() -> None:
        found.append(read_or_make(tmp_path, "key", make))

    threads = [threading.Thread(target=run) for _ in range(3)]
    threads[0].start()
    assert begun.wait(200)
    for thread in threads[1:]:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(200)

    assert made == [1]
    assert found == [{"ipus": 3}] * 3


def test_a_model_without_source_has_no_key() -> None:
    namespace: dict[str, type[torch.nn.Module]] = {}
    exec("import torch\nclass Made(torch.nn.Module): pass", namespace)

    assert key_of(namespace["Made"]()) is None
    assert key_of(torch.nn.Linear(1, 2)) != key_of(torch.nn.Linear(1, 3))


class Configured(torch.nn.Module):
    """Computes in float16 where its configuration, in an attribute, says so."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(4, 3)
        self.options = {"half": [False]}

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        row = self.table(index)
        return row.half() if self.options["half"][0] else row


def configured(
    folder: Path, change: Callable[[Configured], object]
) -> poptorch.PoplarExecutor:
    settings = options()
    settings.enableExecutableCaching(str(folder))
    model = Configured()
    change(model)
    executor = poptorch.inferenceModel(model, settings)
    executor.compile(torch.tensor([1]))
    return executor


def test_a_model_of_float16_has_an_entry_of_its_own(tmp_path: Path) -> None:
    changes: list[Callable[[Configured], object]] = [
        lambda model: None,
        lambda model: model.half(),
        lambda model: model.options.update(half=[True]),
    ]

    compiled = [configured(tmp_path, change)._state.compiled for change in changes]

    assert [each is not None and each.half for each in compiled] == [False, True, True]
    assert len(list(tmp_path.glob("*.json"))) == 3


def test_blocks_on_other_ipus_have_an_entry_of_their_own(tmp_path: Path) -> None:
    def on_ipu(number: int) -> Callable[[Configured], object]:
        return lambda model: poptorch.BeginBlock(model.table, ipu_id=number)

    first, second, again = (configured(tmp_path, on_ipu(n)) for n in (1, 2, 1))

    for executor, ipus in ((first, 2), (second, 3), (again, 2)):
        assert executor._state.compiled is not None
        assert executor._state.compiled.ipus == ipus
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_equal_sets_and_shared_objects_make_the_same_key() -> None:
    first, second = torch.nn.Linear(1, 2), torch.nn.Linear(1, 2)
    text = "word"
    first.pair, first.names = [text, text], {"a", "b"}
    second.pair, second.names = [text, "".join(["wo", "rd"])], {"b", "a"}

    assert key_of(first) == key_of(second) is not None


def test_an_attribute_that_cannot_be_compared_leaves_the_cache_unused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "poptorch:python")

    configured(tmp_path, lambda model: setattr(model, "scale", lambda x: 2 * x))

    assert not list(tmp_path.iterdir())
    assert "The executable cache is not used: an attribute of the module ''" in (
        caplog.text
    )
