"""python_test: a test written in Python 3, without packages."""

def python_test(name, main = None, srcs = [], data = [], **kwargs):
    """Runs `main` with the repository root as its import path.

    Args:
      name: the test.
      main: the file that calls tests.python.junit.main(): NAME.py unless said.
      srcs: what it imports from here.
      data: programs and files that it uses, at their path from the repository root.
      **kwargs: as for every test.
    """
    main = main or name + ".py"
    native.sh_test(
        name = name,
        srcs = ["//tests/python:run.sh"],
        args = ["$(location %s)" % main],
        data = [main, "//tests/python:junit.py", "//tests/python:patience.py"] + srcs + data,
        **kwargs
    )
