"""What an import of popdist.tensorflow imports, and says where TensorFlow is not."""

import subprocess
import sys


def run(program: str) -> str:
    """Return what a Python prints that runs this program."""
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, check=True, timeout=200, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def test_without_tensorflow_the_import_says_how_to_install_it() -> None:
    said = run(
        "import sys; sys.modules['tensorflow'] = None\n"
        "try: import popdist.tensorflow\n"
        "except ModuleNotFoundError as error: print(error.name, error)"
    )

    assert said == (
        "tensorflow popdist.tensorflow needs tensorflow, which is not installed. "
        "Install it from poprun's source folder: pip install '.[tensorflow]'"
    )


def test_an_error_in_a_module_is_shown_and_not_taken_for_a_missing_name() -> None:
    said = run(
        "import sys, types\n"
        "module = types.ModuleType('host_collectives')\n"
        "sys.modules['popdist.tensorflow.host_collectives'] = module\n"
        "try: from popdist.tensorflow import allreduce\n"
        "except ImportError as error: print(error)"
    )

    assert said == (
        "popdist.tensorflow.allreduce cannot be imported: "
        "module 'host_collectives' has no attribute 'allreduce'"
    )


def test_popdist_alone_imports_nothing_of_tensorflow() -> None:
    said = run(
        "import sys, popdist; popdist.init(); popdist.getNumTotalReplicas()\n"
        "print([name for name in sys.modules if 'tensorflow' in name])"
    )

    assert said == "[]"
