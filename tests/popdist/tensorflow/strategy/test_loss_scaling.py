"""Keras's dynamic loss scaling under PopDistStrategy."""

from typing import Any

import pytest

from tests.popdist.tensorflow.instances import (
    keras_of,
    on_all,
    train_in_float16,
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("keras_version", "rows"), [(2, (2, 2)), (3, (1, 1)), (3, (2, 2))], ids=str
)
def test_all_replicas_skip_the_step_in_which_gradients_of_one_overflow(
    keras_version: int, rows: tuple[int, ...]
) -> None:
    def program(rank: int) -> Any:
        # The last replica of the job overflows in its second step.
        local = rows[rank]
        samples = [1] * (3 * local)
        if rank == len(rows) - 1:
            samples[2 * local - 1] = 60000
        return train_in_float16(keras_of(keras_version), samples)

    # Each step that is made takes 0.125 off; the one that is skipped halves the scale.
    assert on_all(rows, program) == [([0.875, 0.875, 0.75], 32.0)] * 2
