from typing import Any

import pytest
import torch
from poptorch_models import Classifier, batch, options, seeded
from torch import nn

import poptorch

OPS = torch.ops.poptorch
NAMES = """
begin_autocast begin_ipu_block begin_multi_conv call_cpu_op clear_attribute
ctc_beam_search_decoder custom_operation dynamic_slice dynamic_update end_autocast
end_cpu_op end_for_loop end_if_block end_ipu_block end_multi_conv identity_loss
internal_cast ipu_print_tensor nop optimizer_group pop_name_scope push_name_scope
recomputation_checkpoint restore_autocast set_attribute set_available_memory
set_matmul_serialization set_overlap_for_input set_overlap_for_output start_else_block
start_for_loop start_if_block suppress_autocast
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_programs_find_the_operators_of_poptorch(name: str) -> None:
    assert callable(vars(OPS)[name])


X, AT = torch.arange(4.0), torch.tensor(1)
# Arguments by PopTorch's names.
NAMED: dict[str, dict[str, Any]] = {
    "begin_ipu_block": {"stage_id": 0, "phase_id": 0, "ipu_id": 0},
    "call_cpu_op": {"inputs": [X], "name": "name"},
    "clear_attribute": {"attribute": "a", "key": "k"},
    "ctc_beam_search_decoder": {
        "probs": torch.zeros(2, 1, 2),
        "lengths": torch.tensor([2]),
        "blank": 0,
        "beam_width": 2,
        "top_paths": 1,
    },
    "custom_operation": {
        "inputs": [X],
        "name": "RemapCE",
        "domain": "ai.graphcore",
        "domain_version": 1,
        "num_outputs": 1,
        "outputs": [X],
        "attributes": "",
    },
    "dynamic_slice": {"self": X, "dim": 0, "start": AT, "size": 2, "step": 1},
    "dynamic_update": {"self": X, "src": X[:2], "dim": 0, "start": AT, "size": 2},
    "end_cpu_op": {"output": [X]},
    "end_for_loop": {"outputs": [X], "inputs": [X], "trip_count": 1},
    "end_if_block": {"outputs": [X], "condition": X},
    "end_multi_conv": {
        "available_memory_proportions": [0.1],
        "partials_types": None,
        "plan_type": None,
        "per_conv_reserved_tiles": None,
        "cycle_back_off": None,
        "enableConvDithering": None,
    },
    "identity_loss": {"x": X, "reduction": 1},
    "internal_cast": {"self": X, "dtype": "FLOAT16"},
    "ipu_print_tensor": {"self": X, "title": None, "digits": 2},
    "nop": {"self": X},
    "optimizer_group": {"group": 0, "inputs": [X]},
    "push_name_scope": {"name": "fc"},
    "recomputation_checkpoint": {"self": X},
    "set_attribute": {"attribute": "a", "key": "k", "value": "v"},
    "set_available_memory": {"t": X, "mem": 0.2},
    "set_matmul_serialization": {
        "matmul": X,
        "mode": "none",
        "factor": 1,
        "keep_precision": False,
    },
    "set_overlap_for_input": {"t": X, "mode": "no_overlap"},
    "set_overlap_for_output": {"t": X, "mode": "no_overlap"},
    "start_else_block": {"outputs": [X]},
    "start_for_loop": {"inputs": [X]},
    "start_if_block": {"condition": X},
}


@pytest.mark.parametrize("name", NAMES.split())
def test_operators_take_arguments_by_poptorchs_names(name: str) -> None:
    operator = getattr(OPS, name).default
    arguments = NAMED.get(name, {})
    if "if_block" in name or "else_block" in name or "cpu_op" in name:
        with pytest.raises(poptorch.Error, match=r"cannot be emulated"):
            operator(**arguments)
    else:
        operator(**arguments)
    with pytest.raises(TypeError, match=rf"^torch.ops.poptorch.{name}\(\) .*'other'"):
        operator(**arguments, other=1)


def test_name_scopes_of_hooks_change_nothing() -> None:
    model = nn.Linear(2, 2)
    model.register_forward_pre_hook(lambda *_: OPS.push_name_scope("fc"))
    model.register_forward_hook(lambda *_: OPS.pop_name_scope())
    x = torch.ones(1, 2)

    found = poptorch.inferenceModel(model, options())(x)

    assert torch.equal(found, model(x).detach())


def test_operators_compute_what_functions_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x, at = torch.arange(4.0), torch.tensor(1)

    assert OPS.identity_loss(x, 1).item() == 1.5
    assert OPS.dynamic_slice(x, 0, at, 2, 1).tolist() == [1.0, 2.0]
    assert OPS.dynamic_update(x, -x[:2], 0, at, 2).tolist() == [0.0, -0.0, -1.0, 3.0]
    assert OPS.internal_cast(x, "FLOAT16").dtype is torch.float16
    assert OPS.nop(OPS.set_available_memory(x, 0.2)) is x
    assert OPS.ipu_print_tensor(x, "x") is x
    assert capsys.readouterr().err == "x: tensor([0., 1., 2., 3.])\n"


def test_gradients_flow_through_operators() -> None:
    x = torch.ones(3, requires_grad=True)

    OPS.identity_loss(OPS.recomputation_checkpoint(x * 2), 0).backward()

    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_identity_loss_of_torch_ops_trains() -> None:
    class Model(Classifier):
        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.layers(x), target)
            loss = OPS.identity_loss(loss * 2, 0)
            assert isinstance(loss, torch.Tensor)
            return loss

    model = Model()
    before = model.layers[0].weight.clone()
    poptorch.trainingModel(model, options())(*batch(4))

    assert not torch.equal(model.layers[0].weight, before)


def test_blocks_have_the_stage_and_the_ipu_that_they_are_given() -> None:
    class Blocks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for index in range(3):
                OPS.begin_ipu_block(index, 0, index)
                x = x + 1
                OPS.end_ipu_block()
            return poptorch.identity_loss((x * self.weight).sum(), reduction="none")

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

    with pytest.raises(poptorch.Error, match="with 3 pipeline stages"):
        poptorch.trainingModel(Blocks(), options())(torch.ones(2))


def test_scopes_of_automatic_casts_begin_and_end() -> None:
    class Casts(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            OPS.begin_autocast()
            within = x @ x
            OPS.suppress_autocast()
            suppressed = x @ x
            OPS.end_autocast()
            OPS.end_autocast()
            return [within, suppressed, x @ x]

    found = poptorch.inferenceModel(Casts(), options())(torch.ones(2, 2))

    assert [one.dtype for one in found] == [torch.float16] + [torch.float32] * 2


def test_what_builds_a_graph_is_refused_in_words() -> None:
    x = torch.ones(1)

    with pytest.raises(poptorch.Error, match=r"Call poptorch\.cond\(\)"):
        OPS.start_if_block(x)
    with pytest.raises(poptorch.Error, match=r"Call a poptorch\.CPU\(\)"):
        OPS.call_cpu_op([x], "name")
    with pytest.raises(poptorch.Error, match="cannot run 3 times"):
        OPS.end_for_loop([x], [x], 3)
    with pytest.raises(poptorch.Error, match=r"Call poptorch\.custom_op\(\)"):
        OPS.custom_operation([x], "RemapCE", "ai.graphcore", 1, 1, [x], "{0x7f}")
    assert OPS.custom_operation([x], "RemapCE", "ai.graphcore", 1, 1, [x], "") == [x]
    with pytest.raises(poptorch.Error, match="no type 'INT4'"):
        OPS.internal_cast(x, "INT4")


def test_programs_see_by_executable_whether_a_model_is_compiled() -> None:
    executor = poptorch.trainingModel(seeded(), options())

    assert executor._executable is None
    executor.compile(*batch(2))
    assert executor._executable
    executor.destroy()
    assert executor._executable is None
