import threading
from pathlib import Path

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
