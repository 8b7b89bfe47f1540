"""Builds the engine's C core and the operations for TensorFlow.

All else about the package is in pyproject.toml.
"""

import os
import shutil
import sys
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CORE = "popdist/engine/core"
KERNELS = "popdist/tensorflow/tensors/kernels"
# For the compiler and the linker, after all other flags: -Werror, or a sanitizer.
MORE_FLAGS = os.environ.get("POPRUN_CORE_CFLAGS", "").split()


class BuildCore(build_ext):
    """Builds the core, or says in one sentence what is missing for it."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except CompileError:
            missing = self.missing()
            if not missing:
                raise
            # Not an exception: setuptools would add a traceback to some of them.
            sys.exit(
                f"error: poprun compiles its engine when it is installed, but {missing}"
                ": on Debian and Ubuntu, apt-get install gcc libc6-dev python3-dev "
                "brings all that it takes."
            )

    def missing(self) -> str | None:
        """Say what the compiler lacks, as far as it is not our code's fault."""
        compiler = self.compiler.compiler_so[0]
        if not shutil.which(compiler):
            return f"there is no C compiler ({compiler} is not in PATH)"
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        for header, owner in (("stdio.h", "the C library"), ("Python.h", python)):
            if not self.finds(header):
                return f"{header} is missing, a header of {owner}"
        return None

    def finds(self, header: str) -> bool:
        with TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(f"#include <{header}>\n")
            try:
                self.compiler.compile([str(source)], folder)
            except CompileError:
                return False
        return True


def extension(name: str, folder: str, sources: str) -> Extension:
    return Extension(
        name,
        sources=sorted(glob(f"{folder}/{sources}.c")),
        include_dirs=[folder],
        depends=[f"{CORE}/flags", *sorted(glob(f"{folder}/{sources}.h"))],
        # The stable ABI of 3.11: one build serves this Python and all later ones.
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
        # In a file of their own, as the Makefile's checks compile with them too.
        extra_compile_args=[f"@{CORE}/flags", *MORE_FLAGS],
        extra_link_args=["-pthread", *MORE_FLAGS],
    )


setup(
    ext_modules=[
        extension("popdist.engine._core", CORE, "*/*"),
        # It takes nothing of TensorFlow to build it.
        extension("popdist.tensorflow.tensors._kernels", KERNELS, "*"),
    ],
    cmdclass={"build_ext": BuildCore},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
