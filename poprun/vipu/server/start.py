"""The entry point of vipu-server; it names a package that is not installed."""

import sys


def main() -> int:
    """Run vipu-server, and return its exit code."""
    try:
        from poprun.vipu.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("poprun"):
            raise
        print(
            f"vipu-server: error: {error.name} is not installed. Install what the "
            "server needs from poprun's source folder: pip install '.[vipu]'",
            file=sys.stderr,
        )
        return 125
    return serve.main()
