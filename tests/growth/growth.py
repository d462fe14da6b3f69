#!/usr/bin/env python3
"""Adds a toy variant of a collective, a toy operation of the control plane and a toy RPC, each by a patch of this
folder, to a copy of the last commit; builds them and runs their tests.

    tests/growth/growth.py                  all of them: some minutes
    tests/growth/growth.py variant          one of them
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Files of the product that each may touch.
FILES_MAX = {"variant": 2, "operation": 4, "rpc": 3}
TOYS = "tests/growth/toys/"


def patch_of(name: str) -> pathlib.Path:
    return HERE / f"{name}.patch"


def touched(name: str) -> list[str]:
    """The files of the product that a patch touches: all but the toy's own test."""
    paths = re.findall(r"^diff --git a/(\S+) b/\1$", patch_of(name).read_text(), re.M)
    return [path for path in paths if not path.startswith(TOYS)]


def apply(name: str, root: pathlib.Path) -> None:
    """Applies a patch to the tree at `root`, without any fuzz."""
    subprocess.run(["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-i", str(patch_of(name))], cwd=root,
                   check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FILES_MAX)}")
    names = parser.parse_args().names or list(FILES_MAX)
    repository = HERE.parent.parent
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="iris-growth-", dir="/tmp"))
    try:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=repository, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "x", "-C", str(scratch)], input=archive.stdout, check=True)
        for name in names:
            apply(name, scratch)
            print(f"{name}: {len(touched(name))} files: {', '.join(touched(name))}", flush=True)
        build = f". deploy/common.sh; use_build_cache; bazel_ test \"${{quiet[@]}}\" --test_output=errors //{TOYS}..."
        try:
            return subprocess.run(["bash", "-c", build], cwd=scratch, check=False).returncode
        finally:
            subprocess.run(["bash", "-c", ". deploy/common.sh; bazel_ clean --expunge"], cwd=scratch, check=False)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    sys.exit(main())
