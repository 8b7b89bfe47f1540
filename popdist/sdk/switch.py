"""Enables and disables the stand-ins for all programs of this Python environment."""

import os
import sys
import sysconfig
from contextlib import suppress
from importlib.util import find_spec as find_installed

from popdist import environment as env
from popdist.errors import PopdistError
from popdist.sdk.finder import STAND_INS, find_spec, is_stand_in, need_of

NAME = "popdist-stand-ins.pth"
# Python carries out a line of a .pth file that begins with `import` at each of its
# starts. This one imports popdist when a stand-in is, if popdist is still there.
FINDER = (
    "import sys; sys.meta_path.insert(0, type('StandInFinder', (), {"
    "'finds_stand_ins': True, 'find_spec': staticmethod("
    "lambda name, path=None, target=None: "
    "__import__('popdist.sdk.finder', fromlist=['find_spec'])"
    ".find_spec(name, path, target) "
    f"if name in {tuple(STAND_INS)!r} "
    "and __import__('importlib.util', fromlist=['util']).find_spec('popdist') "
    "else None)})())\n"
)


class SwitchError(PopdistError):
    """The environment cannot be changed."""


def enable() -> str:
    """Let all programs of this environment import the stand-ins; return the status.

    Raises:
        SwitchError: The environment cannot be written to.
    """
    path = _path()
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(FINDER)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise _not_writable(path, error) from None
    return status()


def disable() -> str:
    """Take the stand-ins from the programs of this environment; return the status.

    Raises:
        SwitchError: The environment cannot be written to.
    """
    path = _path()
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _not_writable(path, error) from None
    return status()


def status() -> str:
    """Return whether the stand-ins are enabled, and what is imported."""
    path = _path()
    state = f"enabled by {path}" if os.path.exists(path) else "disabled"
    lines = [f"The stand-ins are {state} in {sys.prefix}."]
    if os.environ.get(env.SDK) == "no":
        lines.append(f"{env.SDK}=no forbids them for programs with this environment.")
    for name, framework in STAND_INS.items():
        if name.rpartition(".")[0] not in STAND_INS:
            lines.append(_origin_of(name))
        if framework is not None and find_installed(framework) is None:
            lines.append(need_of(name))
    return "\n".join(lines)


def _origin_of(name: str) -> str:
    """Return the sentence on what an import of this name imports."""
    root, *parts = name.split(".")
    path = None
    if parts:
        package = find_installed(root)
        folders = package.submodule_search_locations if package is not None else None
        path = [os.path.join(folder, *parts[:-1]) for folder in folders or ()]
    spec = find_spec(name, path)
    if spec is None or spec.origin is None:
        return f"{name} is not installed."
    if is_stand_in(spec.origin):
        return f"{name} is not installed: there is a stand-in for it."
    return f"{name} is installed, and imported from {spec.origin}."


def _path() -> str:
    return os.path.join(sysconfig.get_path("purelib"), NAME)


def _not_writable(path: str, error: OSError) -> SwitchError:
    return SwitchError(
        f"{path} cannot be changed: {error.strerror}. It is in the site-packages of "
        f"{sys.executable}; make a virtual environment (python3 -m venv DIR), install "
        "poprun in it, and run this command with its Python."
    )
