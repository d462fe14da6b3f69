"""`python -m iris.run -n 4 program.py ...`: starts ranks of a Python program on this node, by iris-run.

What stands before the program is for iris-run; see `python -m iris.run --help`. The ranks use this interpreter.
`-m module` names a module instead of a file. After `--`, a name that does not end in `.py` is a program of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import List, Optional, Tuple

# Options of iris-run that take the next argument.
TAKES_ONE = ("-n", "--ranks", "--np", "-np", "--job", "--runtime-dir", "--env", "--bind", "--timeout", "--grace",
             "--kill-after")


def program(name: str) -> str:
    """The file of a program of the bundle: inside the package, above it in an unpacked bundle, or in the PATH.
    SystemExit: it is nowhere."""
    package = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(package))), "bin", name)
    for path in (os.path.join(package, "_bundle", "bin", name), beside):
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"iris: there is no {name} in this package nor in the PATH: install the wheel iris-symm, or "
                         "put the bin folder of an unpacked bundle into the PATH")
    return found


def split(arguments: List[str]) -> Tuple[List[str], Optional[List[str]]]:
    """(what is for iris-run, the command of a rank; None: there is none)."""
    at = 0
    while at < len(arguments):
        argument = arguments[at]
        if argument == "--":
            command = arguments[at + 1:]
            python = command and (command[0] == "-m" or command[0].endswith(".py"))
            return arguments[:at], [sys.executable, *command] if python else command
        if argument == "-m" or not argument.startswith("-"):
            return arguments[:at], [sys.executable, *arguments[at:]]
        at += 2 if argument in TAKES_ONE else 1
    return arguments, None


def main() -> None:
    """Becomes iris-run."""
    options, command = split(sys.argv[1:])
    path = program("iris-run")
    os.execv(path, [path, *options] + (["--", *command] if command else []))


def irisd() -> None:
    """Becomes irisd."""
    path = program("irisd")
    os.execv(path, [path, *sys.argv[1:]])


def iris_ctl() -> None:
    """Becomes iris-ctl."""
    path = program("iris-ctl")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
