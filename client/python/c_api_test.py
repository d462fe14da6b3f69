"""The package's bindings are those of client/iris/c_api.h: every constant, struct, field and function, both ways."""

import ast
import ctypes
import glob
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "client/python")

# pylint: disable=wrong-import-position
import iris  # noqa: E402
from iris import _capi, errors  # noqa: E402
from tests.python import junit  # noqa: E402

HEADER = "client/iris/c_api.h"
SCALARS = {"size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32,
           "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "char": ctypes.c_char, "float": ctypes.c_float,
           "double": ctypes.c_double}
# Functions for kernels of Triton, which reads their annotations as its own.
KERNELS = tuple(f"client/python/iris/{name}.py" for name in ("_device_context", "_gluon", "_instruments", "_triton",
                                                             "x"))


class Header(unittest.TestCase):
    """The declarations, against what a C compiler says of the header."""

    @staticmethod
    def compile_c(body, output, *options):
        """Compiles a program with these statements. Warnings are errors."""
        program = f"#include <stdio.h>\n#include \"{HEADER}\"\nint main(void) {{\n{body}\nreturn 0;\n}}\n"
        subprocess.run(["gcc", "-x", "c", "-", "-Wall", "-Wextra",
                        "-Wconversion", "-Wsign-conversion", "-Werror", "-I.",
                        "-o", output, *options], input=program, text=True, check=True)

    def run_c(self, body):
        """The output of such a program."""
        with tempfile.TemporaryDirectory() as folder:
            self.compile_c(body, f"{folder}/program")
            return subprocess.run([f"{folder}/program"], stdout=subprocess.PIPE, text=True, check=True).stdout

    @staticmethod
    def structs():
        return {name: value for name, value in vars(_capi).items()
                if isinstance(value, type) and issubclass(value, _capi.Sized) and value is not _capi.Sized}

    def test_structs(self):
        wanted, body = "", ""
        for name, struct in self.structs().items():
            self.assertEqual(struct._fields_[0], ("size", ctypes.c_size_t))
            self.assertEqual(struct().size, ctypes.sizeof(struct))
            wanted += f"{name} {ctypes.sizeof(struct)}\n"
            body += f'printf("{name} %zu\\n", sizeof({name}));\n'
            for field, _ in struct._fields_:
                mine = getattr(struct, field)
                wanted += f"{field} {mine.offset} {mine.size}\n"
                body += f'printf("{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));\n'
        self.assertEqual(wanted, self.run_c(body))
        with open(HEADER, encoding="utf-8") as file:
            self.assertEqual(len(self.structs()), file.read().count("\n  size_t size;\n"))

    def test_constants(self):
        there = {**_capi.CONSTANTS, **{f"IRIS_{code.name}": int(code) for code in errors.StatusCode},
                 "IRIS_VERSION": _capi.VERSION, "IRIS_DEVICE_ABI": _capi.DEVICE_ABI}
        body = "".join(f'printf("{name} %d\\n", {name});\n' for name in there)
        self.assertEqual("".join(f"{name} {value}\n" for name, value in there.items()), self.run_c(body))
        with open(HEADER, encoding="utf-8") as file:
            self.assertEqual(set(re.findall(r"\b(IRIS_\w+) = \d", file.read())), set(there) - {"IRIS_VERSION",
                                                                                         "IRIS_DEVICE_ABI"})

    def c_type(self, kind):
        """A type of C that converts to the parameter without a warning if the declaration is right."""
        for name, scalar in SCALARS.items():
            if kind is scalar:
                return name
        if kind in (ctypes.c_void_p, ctypes.c_char_p):
            return {ctypes.c_void_p: "void*", ctypes.c_char_p: "char*"}[kind]
        pointed = kind._type_
        if pointed is ctypes.c_void_p or hasattr(pointed, "contents"):
            return "void*"  # of handles of any kind, or a pointer to a pointer
        return (pointed.__name__ if pointed in self.structs().values() else self.c_type(pointed)) + "*"

    def test_functions(self):
        body = ""
        for name, (_, parameters) in _capi.FUNCTIONS.items():
            kinds = [self.c_type(kind) for kind in parameters]
            variables = "".join(f"{kind} a{i} = 0; " for i, kind in enumerate(kinds))
            body += f"{{ {variables}(void){name}({', '.join(f'a{i}' for i in range(len(kinds)))}); }}\n"
        with open(HEADER, encoding="utf-8") as file:
            self.assertEqual(len(_capi.FUNCTIONS), file.read().count("\nIRIS_EXPORT "))
        self.compile_c(body, "/dev/null", "-c")

    def test_element_types_have_the_numbers_of_the_header(self):
        from iris.dtypes import DType
        for dtype in DType:
            name = "IRIS_DTYPE_NONE" if dtype is DType.NONE else f"IRIS_{dtype.name}"
            self.assertEqual(_capi.CONSTANTS[name], dtype)

    def test_fills_have_the_numbers_of_the_header(self):
        from iris._fill import KINDS
        self.assertEqual({f"IRIS_FILL_{name.upper()}": number for name, number in KINDS.items()},
                         {name: number for name, number in _capi.CONSTANTS.items() if name.startswith("IRIS_FILL_")})

    def test_variants_have_the_numbers_of_the_header(self):
        from iris import norm, ops
        for prefix, variants in (("IRIS_MATMUL", ops.VARIANTS), ("IRIS_NORM", norm.VARIANTS)):
            for name, number in variants.items():
                self.assertEqual(_capi.CONSTANTS[f"{prefix}_{name.upper()}"], number)

    def test_operators_have_the_numbers_of_the_header(self):
        from iris.collectives import OPERATORS
        for name in ("sum", "prod", "min", "max", "avg"):
            self.assertEqual(_capi.CONSTANTS[f"IRIS_{name.upper()}"], OPERATORS[name])


class Errors(unittest.TestCase):

    def test_each_code_has_a_class_of_its_own(self):
        self.assertEqual(set(errors.CLASS_OF_CODE), {int(code) for code in errors.StatusCode if code})
        for code, kind in errors.CLASS_OF_CODE.items():
            error = errors.error_of(code, "what failed")
            self.assertIs(type(error), kind)
            self.assertIsInstance(error, errors.IrisError)
            self.assertEqual((error.code, str(error), error.text), (code, "what failed", "what failed"))
        self.assertIsInstance(errors.error_of(99, "x"), errors.UnknownError)

    def test_calls_have_their_names_of_python(self):
        for said, wanted in (("failed: iris_comm_check() says why", "failed: check() says why"),
                             ("use iris_allocate() or iris_allocate_local()", "use allocate() or allocate_local()"),
                             ("what iris_comm_check says, barrier()", "what iris_comm_check says, barrier()")):
            self.assertEqual(_capi.in_python(said), wanted)

    def test_python_s_own_classes_catch_them(self):
        for code, kind in ((3, ValueError), (8, MemoryError), (11, IndexError), (12, NotImplementedError)):
            self.assertIsInstance(errors.error_of(code, "x"), kind)

    def test_a_library_that_is_not_there_is_named(self):
        import os
        os.environ["IRIS_LIBRARY"] = "/nowhere/libiris.so"
        try:
            with self.assertRaises(errors.UnavailableError) as caught:
                _capi.library()
        finally:
            del os.environ["IRIS_LIBRARY"]
        self.assertIn("/nowhere/libiris.so", str(caught.exception))
        self.assertIn("IRIS_LIBRARY", str(caught.exception))


class Names(unittest.TestCase):

    def test_dir_shows_the_api_alone(self):
        import inspect
        shown = dir(iris)
        self.assertEqual(shown, sorted({*iris.__all__, *iris._modules.names("iris"), "__version__"}))
        # Without Triton there is no `x`.
        self.assertEqual({name for name in shown if inspect.ismodule(getattr(iris, name, None))} | {"x"},
                         {"moe", "norm"} | {name for name, (source, _) in iris._modules.names("iris").items()
                                            if source == f"iris.{name}"} - {"iris"})


class Sources(unittest.TestCase):
    """What pure Python of 3.9 allows, and what every name of the package has to have."""

    def trees(self):
        paths = glob.glob("client/python/iris/*.py")
        self.assertGreater(len(paths), 10)
        for path in paths:
            with open(path, encoding="utf-8") as file:
                yield path, ast.parse(file.read(), path, feature_version=(3, 9))

    def test_unions_of_types_are_not_evaluated(self):
        for path, tree in self.trees():
            if path.endswith("__init__.py") or path in KERNELS:
                continue
            imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
            self.assertTrue(imports, f"{path} does not put off its annotations")

    def test_public_names_are_documented_and_typed(self):
        bare = []
        for path, tree in self.trees():
            if not ast.get_docstring(tree):
                bare.append(path)
            nodes = list(tree.body)
            while nodes:
                node = nodes.pop()
                if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
                    continue
                where = f"{path}:{node.lineno} {node.name}"
                binding = path.endswith("_header.py") and isinstance(node, ast.ClassDef)
                property_of_enum = path.endswith("dtypes.py") and isinstance(node, ast.FunctionDef)
                if not ast.get_docstring(node) and not binding and not property_of_enum:
                    bare.append(f"{where}: no docstring")
                if isinstance(node, ast.ClassDef):
                    nodes += node.body
                    continue
                if path in KERNELS:
                    continue
                arguments = node.args
                for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs:
                    if argument.annotation is None and argument.arg not in ("self", "cls"):
                        bare.append(f"{where}: {argument.arg} has no type")
                if node.returns is None:
                    bare.append(f"{where}: no type of the result")
        self.assertEqual(bare, [])


if __name__ == "__main__":
    junit.main()
