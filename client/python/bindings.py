#!/usr/bin/env python3
"""Writes iris/_header.py: every constant, struct and function of <iris/c_api.h> as ctypes sees it.

    bindings.py c_api.h > _header.py

The header is plain C with one declaration at a time; a construct that this program does not know ends it.
"""

import re
import sys

SCALARS = {"size_t": "c_size_t", "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64",
           "uint64_t": "c_uint64", "char": "c_char", "float": "c_float", "double": "c_double"}


class Header:
    """The declarations of the header, by name and in order."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"\\\n", " ", re.sub(r"/\*.*?\*/", " ", text, flags=re.S))
        self.versions = re.findall(r"#define IRIS_(VERSION_MAJOR|VERSION_MINOR|DEVICE_ABI) (\d+)", text)
        self.numbers = set(re.findall(r"typedef int32_t (\w+);", text))
        self.opaque = set(re.findall(r"typedef struct (\w+) \1;", text))
        enums = [re.findall(r"IRIS_(\w+) = (\d+)", body) for body in re.findall(r"enum \{(.*?)\}", text, re.S)]
        (self.codes,) = [body for body in enums if body[0][0] == "OK"]
        self.constants = [constant for body in enums if body is not self.codes for constant in body]
        self.structs = {name: [self.declaration(part) for part in body.split(";") if part.strip()]
                        for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.S)}
        self.functions = {
            name: (" ".join(result.split()), [self.declaration(p)[0] for p in parameters.split(",") if p != "void"])
            for result, name, parameters in re.findall(r"IRIS_EXPORT\s+([\w\s*]+?)\s*\b(\w+)\(([^)]*)\);", text)}
        exported = text.count("IRIS_EXPORT") - 1  # but for its definition
        if len(self.functions) != exported or not self.structs or not self.constants:
            raise SystemExit(f"bindings.py: understood {len(self.functions)} of {exported} functions")

    @staticmethod
    def declaration(text: str) -> tuple[str, str, str]:
        """Returns the type, the name and the array length ("" for none) of a field or parameter."""
        match = re.fullmatch(r"\s*(.*?)\s*(\w+)(?:\[(\d+)\])?\s*", text, re.S)
        if match is None:
            raise SystemExit(f"bindings.py: cannot read {text!r}")
        return match.group(1), match.group(2), match.group(3) or ""

    def ctype(self, kind: str) -> str:
        """Returns the ctypes type for a type of C. Handles and memory are c_void_p."""
        bare = re.sub(r"\bconst\b|\s", "", kind)
        if bare in self.numbers:
            return "c_int32"
        if bare in SCALARS:
            return SCALARS[bare]
        if bare == "char*":
            return "c_char_p"
        pointed = bare.rstrip("*")
        depth = len(bare) - len(pointed)
        if pointed in SCALARS or pointed in self.structs:
            return "POINTER(" * depth + SCALARS.get(pointed, pointed) + ")" * depth
        if depth == 0 or not (pointed == "void" or pointed in self.opaque):
            raise SystemExit(f"bindings.py: unknown type {kind}")
        return "POINTER(" * (depth - 1) + "c_void_p" + ")" * (depth - 1)

    def python(self) -> str:
        lines = ['"""Declarations of <iris/c_api.h>, written by client/python/bindings.py."""', "",
                 "from __future__ import annotations", "", "import ctypes", "import enum",
                 f"from ctypes import POINTER, {', '.join(sorted({'c_char_p', 'c_void_p', *SCALARS.values()}))}",
                 "from typing import Any, Dict, List, Tuple", ""]
        lines += [f"{name} = {value}" for name, value in self.versions]
        lines += ["", "", "class StatusCode(enum.IntEnum):",
                  '    """Kinds of errors, by the numbers of the C API, which are those of gRPC."""', ""]
        lines += [f"    {name} = {value}" for name, value in self.codes]
        lines += ["", "", "CONSTANTS: Dict[str, int] = {"]
        lines += [f'    "IRIS_{name}": {value},' for name, value in self.constants]
        lines += ["}", "", "", "class Sized(ctypes.Structure):", '    """A struct that begins with its size."""', "",
                  "    def __init__(self, **fields: Any) -> None:",
                  "        super().__init__(size=ctypes.sizeof(type(self)), **fields)"]
        for name, fields in self.structs.items():
            lines += ["", "", f"class {name}(Sized):", "    _fields_ = ["]
            lines += [f'        ("{field}", {self.ctype(kind)}{" * " + length if length else ""}),'
                      for kind, field, length in fields]
            lines += ["    ]"]
        lines += ["", "", "# The type of the result, and those of the parameters. CODE stands for an iris_code.",
                  'CODE = "iris_code"', "FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {"]
        for name, (result, parameters) in self.functions.items():
            returned = {"iris_code": "CODE", "void": "None"}.get(result) or self.ctype(result)
            lines += [f'    "{name}": ({returned}, [{", ".join(map(self.ctype, parameters))}]),']
        return "\n".join([*lines, "}", ""])


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(Header(file.read()).python())


if __name__ == "__main__":
    main()
