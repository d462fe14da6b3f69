"""`python -m iris.run -n 4 program.py ...`: starts ranks of a Python program, by iris-run.

Arguments before the program are for iris-run; see `python -m iris.run --help`. The ranks use this interpreter.
`-m module` names a module instead of a file. After `--`, a name that does not end in `.py` is an executable program.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import List, Optional, Tuple

# Options of iris-run that take the next argument.
TAKES_ONE = ("-n", "--ranks", "--np", "-np", "--job", "--runtime-dir", "--env", "-x", "--bind", "--timeout", "--grace",
             "--kill-after", "--hosts", "--hostfile", "--rsh", "--rendezvous", "--connect-timeout")


def program(name: str) -> str:
    """Returns the file of a program of the bundle: inside the package, above it in an unpacked bundle, or in the PATH.
    Raises SystemExit if there is none."""
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
    """Returns the arguments for iris-run, and the command of a rank, or None if there is no command."""
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
    """Replaces this process by iris-run."""
    options, command = split(sys.argv[1:])
    path = program("iris-run")
    os.execv(path, [path, *options] + (["--", *command] if command else []))


def irisd() -> None:
    """Replaces this process by irisd."""
    path = program("irisd")
    os.execv(path, [path, *sys.argv[1:]])


def iris_ctl() -> None:
    """Replaces this process by iris-ctl."""
    path = program("iris-ctl")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
