"""The command line: hands over to the program that was built and installed with the package."""
from __future__ import annotations

import os
import pathlib
import sys


def main() -> None:
    """Replaces this process by the program; does not return."""
    program = pathlib.Path(__file__).with_name("bin") / "transload"
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
