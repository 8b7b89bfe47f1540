"""Makes the stand-in importable for the tests of this folder, in one process."""

import os
from collections.abc import Iterator

import pytest

import popdist.sdk

# TensorFlow says on stderr what the CPU can do.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

popdist.sdk.install()

import tensorflow as tf  # noqa: E402
from tensorflow.python import ipu  # noqa: E402


@pytest.fixture(autouse=True)
def no_configuration() -> Iterator[None]:
    """Let no test see the IPU system that another one has configured."""
    yield
    ipu.config.reset_ipu_configuration()


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    """A graph for sessions, as programs for TensorFlow 1 have."""
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture(params=["while_v1", "while_v2"])
def loops(request: pytest.FixtureRequest, graph: tf.Graph) -> Iterator[None]:
    """Make loops and branches in each of TensorFlow's two ways."""
    if request.param == "while_v1":
        tf.compat.v1.disable_control_flow_v2()
    yield
    tf.compat.v1.enable_control_flow_v2()
