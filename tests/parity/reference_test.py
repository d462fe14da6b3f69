"""Each public name of the reference is in the package, with its parameters, and on the page, or is refused with a
reason; every way to import a module of the reference finds it; and reference.py finds what is wrong."""

import importlib
import importlib.util
import inspect
import os
import pickle
import pydoc
import subprocess
import sys
import unittest

from tests.parity import reference
from tests.python import junit

# The source tree, found through this file's real path. The package is complete in the folder of the test alone.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
reference.prepare()
sys.path.insert(0, "client/python")
MISSING = [package for package in ("numpy", "torch", "triton") if importlib.util.find_spec(package) is None]

LIST = """# a list
iris.ops.config
  FusedConfig(a, b=1, *,
      c='x')
  FusedConfig.check
iris.ops
  FusedConfig twice
iris.old = iris.ops
"""
PAGE = "| module | names | Iris |\n|---|---|---|\n"


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class Reference(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.names, cls.paths, cls.page = reference.read(ROOT)

    def test_every_name(self):
        rows, wrong = reference.compare(self.names, self.paths, self.page)
        self.assertEqual("", "\n".join(wrong))
        self.assertGreater(len(rows), 500)

    def test_what_is_wrong_on_the_page(self):
        def found(page, *names):
            return reference.compare([each for each in self.names if each.module in names], {}, page)[1]

        reason = importlib.import_module("iris._modules").REASONS["driver"]
        right = PAGE + f"| `iris.drivers` | `DriverStack` | refused: {reason} |\n"
        self.assertEqual([], found(right, "iris.drivers"))
        self.assertIn("not the reason", found(right.replace("irisd", "nobody"), "iris.drivers")[0])
        self.assertIn("not the reason", found(PAGE + "| `iris.drivers` | `DriverStack` | same |\n", "iris.drivers")[0])
        self.assertIn("has another row", found(right + right[len(PAGE):], "iris.drivers")[0])
        self.assertIn("has nothing to do", found(right.replace("` |", "` `Nothing` |", 1), "iris.drivers")[0])
        self.assertIn("has nothing to do", found(right.replace("| `iris", "| `iris.no` `iris"), "iris.drivers")[0])
        self.assertIn("not three columns", found(right.replace("refused: ", ""), "iris.drivers")[0])
        module = "iris.host.iris"
        self.assertIn("is not in docs", found(PAGE, module)[0])
        self.assertIn("is refused only in docs",
                      found(PAGE + f"| `{module}` | `Iris` `iris` | refused: so |\n", module)[-1])

    def test_the_list(self):
        names, paths = reference.read_names(LIST)
        self.assertEqual([("iris.ops.config", "FusedConfig", "a, b=1, *, c='x'"),
                          ("iris.ops.config", "FusedConfig.check", None), ("iris.ops", "FusedConfig", None),
                          ("iris.ops", "twice", None)], [(each.module, each.name, each.parameters) for each in names])
        self.assertEqual({"iris.old": "iris.ops"}, paths)

    def test_parameters(self):
        def ours(a, b=1, *rest, c="x", d=None):
            return a, b, rest, c, d

        for wanted, said in (
            ("a, b=1, *, c='x'", ""), ("a", ""), ("a, b=1, c='x'", "c is not number 3"), ("a, e", "no e"),
            ("b, a", "b is not number 1, a is not number 2"), ("a, b=2", "b=1, not 2"), ("a=0", "a has no default"),
            ("b=1", "b is not number 1, a is wanted, too"), ("a, *rest", ""), ("a, **more", "no *more"),
            ("a, *, d=torch.float", ""), ("a, *, c=torch.float", "c=x, not torch.float"),
        ):
            with self.subTest(wanted):
                self.assertEqual(said, reference.differences(wanted, ours))

    def test_what_is_missing(self):
        names = [reference.Name("iris.ccl", "nothing", None), reference.Name("iris.nothing", "at_all", None)]
        rows, wrong = reference.compare(names, {}, PAGE)
        self.assertEqual(["missing", "missing"], [row[2].split(":")[0] for row in rows])
        self.assertEqual(4, len(wrong))  # they are not on the page, either


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class Imports(unittest.TestCase):
    """The ways in which programs import the reference's modules, each in a process of its own."""

    def run_program(self, text):
        done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertEqual(0, done.returncode, f"{text}\n{done.stdout}")
        return done.stdout

    def test_forms(self):
        for line in (
            "import iris.ccl.all_reduce; iris.ccl.all_reduce.all_reduce",
            "import iris.ccl.all_reduce as m; m.all_reduce_preamble",
            "from iris.ccl import Config, ReduceOp; from iris.ccl.config import Config as C; assert C is Config",
            "import iris.ops.matmul_all_reduce; assert not hasattr(iris.ops.matmul_all_reduce, '__path__')",
            "from iris.ops.matmul_all_reduce import matmul_all_reduce, matmul_all_reduce_preamble",
            "import iris; iris.ccl.Config; iris.hip.get_num_xcc; iris.tensor_creation.zeros; iris.experimental",
            "from iris import hip, tensor_creation, experimental, ops, DeviceContext, TraceEvent",
            "import iris.iris; assert callable(iris.iris)",
            "from iris.iris import iris, Iris",
            "import iris.x.core as c; from iris.x import TileView; assert c.TileView is TileView",
            "from iris.mem.triton.ops import *; load, atomic_max",
            "from iris.device.triton.context import DeviceContext",
            "from iris.device_utils import read_realtime",
            "from iris.experimental import iris_gluon; iris_gluon.iris",
            "import iris.host.platform.hip as a, iris.hip as b; assert a is b",
            "import iris.ops as ops; ops.config.FusedConfig; assert not hasattr(ops.matmul_all_reduce, '__path__')",
            "import iris.tracing, iris.logging; iris.trace, iris.logging.logger, iris.tracing.DeviceTracing",
        ):
            with self.subTest(line):
                self.run_program(line)

    def test_refusals(self):
        for line, said in (
            ("from iris.hip import mem_create", "ImportError: iris.hip.mem_create is not in Iris: irisd alone"),
            ("import iris; iris.hip.mem_create", "AttributeError: iris.hip.mem_create is not in Iris: irisd alone"),
            ("import iris.drivers.fabric.amd", "ImportError: iris.drivers is not in Iris: irisd alone"),
            ("from iris import drivers", "ImportError: iris.drivers is not in Iris: irisd alone"),
            ("from iris.ccl.triton.all_gather import launch", "ImportError: iris.ccl.triton.all_gather is not in Iris"),
            ("from iris.hip import nothing", "ImportError: cannot import name 'nothing'"),
            ("import sys; sys.modules['triton'] = None; from iris import load",
             "ImportError: iris.load is for kernels of Triton"),
            ("import iris.nothing", "ModuleNotFoundError: No module named 'iris.nothing'"),
            ("import iris; iris.ccl.nothing", "AttributeError: module 'iris.ccl' has no attribute 'nothing'"),
        ):
            with self.subTest(line):
                out = self.run_program(f"try:\n    {line}\nexcept Exception as e:\n    print(type(e).__name__ + ': ' + "
                                       "str(e))")
                self.assertIn(said.replace("iris.hip.mem", "iris.host.platform.hip.mem"), out)
        self.assertEqual("False\n", self.run_program("import iris; print(hasattr(iris.hip, 'mem_create'))"))

    def test_modules_behave_as_modules(self):
        import iris
        ccl = importlib.import_module("iris.ccl")
        self.assertIn("Config", dir(ccl))
        self.assertIn("all_reduce", dir(ccl))
        self.assertNotIn("all_reduce", ccl.__all__)  # from iris.ccl import * gives no modules
        self.assertIs(importlib.reload(ccl), ccl)
        self.assertIs(importlib.reload(iris.ops), iris.ops)
        self.assertIsNone(importlib.util.find_spec("iris.nothing"))
        self.assertIsNotNone(importlib.util.find_spec("iris.host"))
        for module in (iris, iris.ops, iris.tracing, ccl):  # Triton lets kernels use no modules of another class
            self.assertIs(type(module), type(sys))
        inspect.getmodule(Imports)  # asks every module for its file
        self.assertIn("iris.ccl", pydoc.render_doc(ccl))
        config = ccl.Config(block_size_m=64)
        self.assertEqual(config, pickle.loads(pickle.dumps(config)))


if __name__ == "__main__":
    junit.main()
