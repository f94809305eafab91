"""The command line: hands over to the program that was built and installed with the package."""
from __future__ import annotations

import importlib.metadata
import os
import pathlib
import sys


def main() -> None:
    """Says the package's version, or replaces this process by the program and does not return."""
    if sys.argv[1:] == ["--version"]:
        print("transload", importlib.metadata.version("transload"))
        return
    program = pathlib.Path(__file__).with_name("bin") / "transload"
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
