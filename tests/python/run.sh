#!/bin/sh
# Runs a Python test from the runfiles: Bazel 4's own py_test asks for a program called "python", which Debian lacks.
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$PWD" exec python3 "$@"
