#!/usr/bin/env python3
"""Makes the wheel iris-symm of an unpacked bundle: wheel.py BUNDLE FOLDER. It prints the wheel's path.

The wheel has the package `iris` of the bundle's lib/python, and inside it, in _bundle, the bundle's programs and
libraries at their places to each other. It needs no compiler and no other package but numpy. Nothing but Python's own
library makes it, and the same bundle gives the same bytes.
"""

import base64
import hashlib
import os
import pathlib
import re
import stat
import sys
import zipfile

# Where the bundle runs: glibc 2.35 or newer on x86-64.
TAG = "py3-none-manylinux_2_35_x86_64"
NAME = "iris_symm"
# Of the bundle: what the package uses. Headers, examples, tests and what links programs stay there.
TAKEN = re.compile(r"bin/(irisd|iris-ctl|iris-run)|lib/[^/]+\.so(\.[0-9.]+)?|libexec/iris/irisd-(worker|port)")

METADATA = """Metadata-Version: 2.1
Name: iris-symm
Version: {version}
Summary: Symmetric heaps for multi-GPU jobs: tensors that every rank reaches, put and get, collectives
License: MIT
Requires-Python: >=3.9
Requires-Dist: numpy>=1.22
Provides-Extra: torch
Requires-Dist: torch; extra == "torch"
Provides-Extra: triton
Requires-Dist: triton>=3.4; extra == "triton"
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

Iris gives every process of a multi-GPU job a symmetric heap. `import iris`; start `irisd`, then
`python -m iris.run -n 4 program.py`.
"""
ENTRY_POINTS = """[console_scripts]
irisd = iris.run:irisd
iris-ctl = iris.run:iris_ctl
iris-run = iris.run:main
"""
WHEEL = f"""Wheel-Version: 1.0
Generator: iris
Root-Is-Purelib: false
Tag: {TAG}
"""


def walk(root):
    """(name, path) of every file and of every link to one, in order."""
    return [(str(path.relative_to(root)), path) for path in sorted(root.rglob("*")) if path.is_file()]


def contents(bundle, version):
    """(name in the wheel, bytes, whether it is a program) of each file."""
    info = f"{NAME}-{version}.dist-info"
    for name, path in walk(bundle / "lib/python/iris"):
        if "__pycache__" not in name:
            yield f"iris/{name}", path.read_bytes(), False
    taken = {}
    for name, path in walk(bundle):
        if TAKEN.fullmatch(name):
            taken.setdefault(path.resolve(), []).append(name)
    for path, names in taken.items():
        # A wheel has no links. Of a library of ours, the name by which it is opened: libiris.so; of others, the name
        # that programs ask for.
        name = min(names, key=lambda each: (not each.endswith(".so"), len(each)))
        yield f"iris/_bundle/{name}", path.read_bytes(), name.startswith(("bin/", "libexec/"))
    for name, text in (("METADATA", METADATA.format(version=version)), ("WHEEL", WHEEL),
                       ("entry_points.txt", ENTRY_POINTS), ("top_level.txt", "iris\n")):
        yield f"{info}/{name}", text.encode(), False
    for name, path in walk(bundle / "share/doc/iris"):
        if name == "LICENSE" or name.startswith("third_party/"):
            yield f"{info}/licenses/{name}", path.read_bytes(), False


def make(bundle, folder):
    """The path of the new wheel."""
    text = (bundle / "share/doc/iris/CONTENTS").read_text(encoding="utf-8")
    version = re.match(r"Iris (\S+) for", text).group(1)
    path = os.path.join(folder, f"{NAME}-{version}-{TAG}.whl")
    record = []
    os.makedirs(folder, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:

        def add(name, data, program):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if program else 0o644)) << 16
            wheel.writestr(entry, data)

        for name, data, program in contents(bundle, version):
            add(name, data, program)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        name = f"{NAME}-{version}.dist-info/RECORD"
        add(name, "".join(record + [f"{name},,\n"]).encode(), False)
    return path


def main(arguments):
    if len(arguments) != 2:
        sys.exit("wheel.py BUNDLE FOLDER: the unpacked bundle, and where the wheel is to lie")
    bundle = pathlib.Path(arguments[0])
    if not (bundle / "lib/python/iris/__init__.py").exists():
        sys.exit(f"wheel.py: {bundle} is no unpacked bundle of Iris: it has no lib/python/iris")
    print(make(bundle, arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
