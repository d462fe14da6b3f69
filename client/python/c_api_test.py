"""The package's bindings are those of client/iris/c_api.h: every constant, struct, field and function, both ways."""

import ast
import ctypes
import glob
import re
import sys
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
KERNELS = ("client/python/iris/_triton.py", "client/python/iris/x.py")
ENUMS = ("iris_dtype", "iris_reduce_op", "iris_signal_op", "iris_code", "iris_fill_kind")


def header():
    with open(HEADER, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S)
    return re.sub(r"\\\n", " ", text)


def structs(text):
    """name: [(type, field, length of an array or None)]."""
    found = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.S):
        fields = []
        for declaration in filter(None, (d.strip() for d in body.split(";"))):
            kind, field, length = re.fullmatch(r"(.*?)(\w+)(?:\[(\d+)\])?", declaration, re.S).groups()
            fields.append((" ".join(kind.split()), field, int(length) if length else None))
        found[name] = fields
    return found


def functions(text):
    """name: (type of the result, [types of the parameters])."""
    found = {}
    for result, name, parameters in re.findall(r"IRIS_EXPORT\s+([\w\s*]+?)\s*\b(\w+)\(([^)]*)\);", text):
        types = []
        for parameter in parameters.split(","):
            parameter = " ".join(parameter.split())
            if parameter != "void":
                types.append(re.fullmatch(r"(.*?)\s*\w+", parameter).group(1))
        found[name] = (" ".join(result.split()), types)
    return found


class Header(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.text = header()
        cls.structs = structs(cls.text)
        cls.functions = functions(cls.text)

    def ctype(self, kind):
        """What the bindings have to say for a type of C."""
        bare = re.sub(r"\bconst\b|\s", "", kind)
        if bare in ENUMS:
            return ctypes.c_int32
        if bare in SCALARS:
            return SCALARS[bare]
        if bare == "char*":
            return ctypes.c_char_p
        if bare.endswith("***") or bare.count("*") > 2:
            self.fail(f"this test does not know {kind}")
        if bare.endswith("**"):
            pointed = bare[:-2]
            return ctypes.POINTER(ctypes.POINTER(SCALARS[pointed])) if pointed in SCALARS else (
                ctypes.POINTER(ctypes.c_void_p))
        self.assertTrue(bare.endswith("*"), kind)
        pointed = bare[:-1]
        if pointed in SCALARS:
            return ctypes.POINTER(SCALARS[pointed])
        if pointed in self.structs:
            return ctypes.POINTER(getattr(_capi, pointed))
        # void, and what the header only declares.
        self.assertTrue(pointed == "void" or f"typedef struct {pointed} {pointed};" in self.text, kind)
        return ctypes.c_void_p

    def test_the_header_was_understood(self):
        self.assertEqual(len(self.functions), self.text.count("IRIS_EXPORT") - 1)  # its definition
        self.assertGreater(len(self.functions), 60)
        self.assertGreater(len(self.structs), 9)

    def test_functions(self):
        self.assertEqual(sorted(self.functions), sorted(_capi.FUNCTIONS))
        for name, (result, parameters) in self.functions.items():
            bound_result, bound = _capi.FUNCTIONS[name]
            with self.subTest(name):
                if result == "iris_code":
                    self.assertIs(bound_result, _capi.CODE)
                elif result == "void":
                    self.assertIsNone(bound_result)
                else:
                    self.assertIs(bound_result, self.ctype(result))
                # A handle that is made is a pointer to a pointer, whatever it points to.
                wanted = [self.ctype(kind) for kind in parameters]
                self.assertEqual([self.plain(kind) for kind in wanted], [self.plain(kind) for kind in bound])

    @staticmethod
    def plain(kind):
        return kind.__name__

    def test_structs(self):
        bound = {name for name, value in vars(_capi).items()
                 if isinstance(value, type) and issubclass(value, _capi.Sized) and value is not _capi.Sized}
        self.assertEqual(bound, set(self.structs))
        for name, fields in self.structs.items():
            mine = getattr(_capi, name)._fields_
            with self.subTest(name):
                self.assertEqual([field for _, field, _ in fields], [field for field, _ in mine])
                for (kind, field, length), (_, there) in zip(fields, mine):
                    wanted = self.ctype(kind) if length is None else self.ctype(kind) * length
                    self.assertIs(wanted, there, f"{name}.{field}")
                self.assertEqual(fields[0][:2], ("size_t", "size"))
                self.assertEqual(getattr(_capi, name)().size, ctypes.sizeof(getattr(_capi, name)))

    def test_enumerators(self):
        there = {name: int(value) for body in re.findall(r"enum \{(.*?)\}", self.text, re.S)
                 for name, value in re.findall(r"(IRIS_\w+) = (\d+)", body)}
        codes = {f"IRIS_{code.name}": int(code) for code in errors.StatusCode}
        self.assertEqual(there, {**_capi.CONSTANTS, **codes})

    def test_versions(self):
        for name, value in (("IRIS_VERSION_MAJOR", _capi.VERSION_MAJOR), ("IRIS_VERSION_MINOR", _capi.VERSION_MINOR),
                            ("IRIS_DEVICE_ABI", _capi.DEVICE_ABI)):
            self.assertEqual(re.search(rf"#define {name} (\d+)", self.text).group(1), str(value))

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
        self.assertEqual(shown, sorted({*iris.__all__, *iris._IN_KERNELS, "__version__"}))
        self.assertEqual({name for name in shown if inspect.ismodule(getattr(iris, name, None))} - {"x"},
                         {"moe", "norm", "ops"})


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
                binding = path.endswith("_capi.py") and isinstance(node, ast.ClassDef)
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
