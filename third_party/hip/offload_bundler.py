"""Puts the code objects of several GPUs into one file, as clang's driver asks its clang-offload-bundler.

    offload_bundler.py -type=o -bundle-align=4096 -targets=A,B -input=A.out -input=B.out -output=X.hipfb

The wheel that brings clang for AMD's GPUs does not bring this program. The format is that of LLVM's "Clang Offload
Bundler" page: a magic text, the number of entries, of each where it lies, how long it is, and the name of its target;
then the code objects.
"""

import struct
import sys

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"


def bundle(targets, contents, alignment):
    table_bytes = sum(struct.calcsize("<QQQ") + len(target) for target in targets)
    at = len(MAGIC) + struct.calcsize("<Q") + table_bytes
    table = b""
    places = []
    for target, content in zip(targets, contents):
        at = -(-at // alignment) * alignment
        places.append(at)
        table += struct.pack("<QQQ", at, len(content), len(target)) + target.encode()
        at += len(content)
    result = bytearray(MAGIC + struct.pack("<Q", len(targets)) + table)
    for place, content in zip(places, contents):
        result += bytes(place - len(result)) + content
    return bytes(result)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def main(arguments):
    alignment = 1
    inputs = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "-targets":
            targets = value.split(",")
        elif name == "-input":
            inputs.append(value)
        elif name == "-output":
            output = value
        elif name == "-bundle-align":
            alignment = int(value)
        elif argument != "-type=o":
            sys.exit(f"offload_bundler.py: does not know {argument!r}; it does what clang asks for a HIP source alone")
    if len(inputs) != len(targets):
        sys.exit(f"offload_bundler.py: {len(inputs)} inputs for {len(targets)} targets")
    with open(output, "wb") as file:
        file.write(bundle(targets, [read(path) for path in inputs], alignment))


if __name__ == "__main__":
    main(sys.argv[1:])
