from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from popdist import sdk
from popdist.errors import SettingError
from popdist.sdk import custom_ops
from popdist.sdk.custom_ops import CustomOp, CustomOpError, find_custom_op


def double(inputs: Any, attributes: Any) -> Any:
    return [2 * x for x in inputs]


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_ops, "_registered", {})
    custom_ops._import_modules.cache_clear()


def add_entry_point(folder: Path, module: str) -> None:
    package = folder / "packaged-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: packaged\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        f"[popdist.custom_ops]\npackaged = {module}\n"
    )


def test_what_the_program_registers_comes_before_what_popdist_provides() -> None:
    provided = {"Double": CustomOp("Double", lambda inputs, attributes: inputs)}

    assert find_custom_op("Double", provided).outputs([3], {}) == [3]
    sdk.register_custom_op("Double", double)
    assert find_custom_op("Double", provided).outputs([3], {}) == [6]


def test_the_error_has_the_line_to_write() -> None:
    with pytest.raises(CustomOpError) as caught:
        find_custom_op("Double", {})

    assert str(caught.value) == (
        "The custom operator 'Double' has no function for the CPU. Register one before "
        "the model runs: popdist.sdk.register_custom_op('Double', function), where "
        "function(inputs, attributes) returns the outputs. Or name a module that does "
        "so in POPDIST_CUSTOM_OPS: the program need not be changed then. "
        "docs/custom_operators.md has an example."
    )


def test_modules_of_the_variable_register_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, factor in (("first_operators", 2), ("second_operators", 3)):
        (tmp_path / f"{name}.py").write_text(
            "from popdist.sdk import register_custom_op\n"
            f"register_custom_op('Times{factor}', lambda inputs, _: {factor} * "
            "inputs[0])\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("POPDIST_CUSTOM_OPS", "first_operators, second_operators")

    assert find_custom_op("Times2", {}).outputs([5], {}) == [10]
    assert find_custom_op("Times3", {}).outputs([5], {}) == [15]


def test_a_module_that_does_not_exist_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_more.py").write_text("import no_such_module_either\n")
    monkeypatch.setenv("POPDIST_CUSTOM_OPS", "no_such_module")

    with pytest.raises(
        SettingError,
        match=r"^POPDIST_CUSTOM_OPS is 'no_such_module', but must be a list of modules "
        r"with commas, and there is no module 'no_such_module' on sys.path. Correct",
    ):
        find_custom_op("Double", {})
    monkeypatch.setenv("POPDIST_CUSTOM_OPS", "needs_more")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_either"):
        find_custom_op("Double", {})


def test_modules_of_entry_points_register_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packaged_operators.py").write_text(
        "from popdist.sdk import register_custom_op\n"
        "register_custom_op('Negate', lambda inputs, _: -inputs[0])\n"
    )
    add_entry_point(tmp_path, "packaged_operators")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(metadata.entry_points(group="popdist.custom_ops"))

    assert find_custom_op("Negate", {}).outputs([5], {}) == [-5]


@pytest.mark.parametrize("is_packaged", [False, True], ids=["variable", "entry point"])
def test_what_the_program_registers_comes_before_what_modules_register(
    is_packaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"operators_{is_packaged}"
    (tmp_path / f"{module}.py").write_text(
        "from popdist.sdk import register_custom_op\n"
        "for name in ('Double', 'Negate'):\n"
        "    register_custom_op(name, lambda inputs, _: -inputs[0])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    if is_packaged:
        add_entry_point(tmp_path, module)
    else:
        monkeypatch.setenv("POPDIST_CUSTOM_OPS", module)
    sdk.register_custom_op("Double", double)

    # Finding an operator that the program has not registered imports the module.
    assert find_custom_op("Negate", {}).outputs([5], {}) == [-5]
    assert find_custom_op("Double", {}).outputs([5], {}) == [10]


def test_what_the_variable_registers_comes_before_what_packages_register(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, factor in (("operators_of_package", 2), ("operators_of_variable", 3)):
        (tmp_path / f"{module}.py").write_text(
            "from popdist.sdk import register_custom_op\n"
            f"register_custom_op('Times', lambda inputs, _: {factor} * inputs[0])\n"
        )
    add_entry_point(tmp_path, "operators_of_package")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("POPDIST_CUSTOM_OPS", "operators_of_variable")

    assert find_custom_op("Times", {}).outputs([5], {}) == [15]


def test_a_backward_function_returns_a_gradient_for_each_input() -> None:
    operator = CustomOp("Pair", double, lambda *_: [None])

    with pytest.raises(CustomOpError, match=r"returned 1 gradients for 2 inputs"):
        operator.gradients([1], [1, 2], [2, 4], {})
