"""What an import of popdist.tensorflow imports, and says where TensorFlow is not."""

import subprocess
import sys


def run(program: str) -> str:
    """Return what a Python prints that runs this program."""
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, check=True, timeout=50, stdout=subprocess.PIPE, text=True
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


def test_popdist_alone_imports_nothing_of_tensorflow() -> None:
    said = run(
        "import sys, popdist; popdist.init(); popdist.getNumTotalReplicas()\n"
        "print([name for name in sys.modules if 'tensorflow' in name])"
    )

    assert said == "[]"
