#!/usr/bin/env python3
"""Compares the reference's public names with the package: present, with the same parameters, and documented.

    PYTHONPATH=BUNDLE/lib/python tests/parity/reference.py [--root REPOSITORY] [--all]

reference_names.txt has the names. A parameter of the reference has to stand at its place in ours with its default;
ours may have more after it, or by keyword only. docs/from_other_libraries.md has tables with the columns module, names
and Iris. A row is about the names that its modules have. Each name of each module, or its class, has one row. The last
column says *same*, *same, but ...*, where parameters differ or the meaning does, or *refused: ...*, with the reason
that client/python/iris/_modules.py has and the package raises.

It needs the package, which is complete in a bundle, torch and Triton. It sees kernels as Triton's interpreter does.
"""

import argparse
import ast
import dataclasses
import importlib
import inspect
import os
import re
import sys

NAMES = "tests/parity/reference_names.txt"
PAGE = "docs/from_other_libraries.md"
HEAD = ["module", "names", "Iris"]
SAME, DIFFERENT, REFUSED = "same", "same, but ", "refused: "
CODE = re.compile(r"`([^`]+)`")


@dataclasses.dataclass
class Name:
    """A name of a module of the reference; `parameters` is None if the list has none."""
    module: str
    name: str
    parameters: "str | None"


def read_names(text):
    """Returns the names of the list, and the second paths of modules: {path: the first one}."""
    names, paths, module = [], {}, ""
    text = re.sub(r"\n {6}", " ", text)  # lines that go on
    for line in text.split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        if " = " in line and not line.startswith(" "):
            path, original = line.split(" = ")
            paths[path] = original
        elif not line.startswith(" "):
            module = line
        elif "(" in line:
            name, _, parameters = line.strip().partition("(")
            names.append(Name(module, name, parameters[:-1]))
        else:
            names += [Name(module, name, None) for name in line.split()]
    return names, paths


def read_page(text, known):
    """Returns what the page says of `known`, the set of (module, name): {(module, name): what the last column says},
    and mistakes."""
    said, wrong, inside = {}, [], False
    for number, line in enumerate(text.split("\n"), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells == HEAD:
            inside = True
        elif inside and not set(line) <= set("|-: "):
            modules, names = CODE.findall(cells[0]), " ".join(CODE.findall(cells[1])).split()
            if len(cells) != 3 or not modules or not cells[2].startswith((SAME, REFUSED)) or (
                    cells[2] != SAME and not cells[2].startswith((DIFFERENT, REFUSED))):
                wrong.append(f"{PAGE}:{number}: not three columns: `modules`, `names`, and same, \"{DIFFERENT}...\" or "
                             f"\"{REFUSED}...\"")
                continue
            keys = {(module, name) for module in modules for name in names} & known
            for part, wanted in ((0, modules), (1, names)):
                wrong += [f"{PAGE}:{number}: `{each}` has nothing to do with the rest of the row" for each in wanted
                          if each not in {key[part] for key in keys}]
            wrong += [f"{PAGE}:{number}: {'.'.join(key)} has another row, too" for key in sorted(keys & set(said))]
            said.update(dict.fromkeys(keys, cells[2]))
    return said, wrong


def found_in(module, name):
    """Returns what a name of a module is here. Raises ImportError or AttributeError if there is nothing."""
    found = importlib.import_module(module)
    for part in name.split("."):
        owner, found = found, getattr(found, part, None)
        if found is None:
            # An attribute that objects have, and their class has not.
            if inspect.isclass(owner) and (part in getattr(owner, "__annotations__", {})
                                           or re.search(rf"\bself\.{part}\b", inspect.getsource(owner))):
                return None
            return getattr(owner, part)
    return found


def _default(value):
    """A default in the form in which two are compared: constants of torch by name, functions and factories as one."""
    if isinstance(value, ast.expr):
        try:
            value = ast.literal_eval(value)
        except ValueError:
            text = ast.unparse(value)
            if isinstance(value, (ast.Lambda, ast.Call)):
                return "a function"
            value = eval(text, {"torch": _Torch()})  # pylint: disable=eval-used  # of the list: 1 << 30, torch.float
    if callable(value) or repr(value) == "<factory>":
        return "a function"
    value = getattr(value, "value", value)  # of a tl.constexpr
    return {"torch.float": "torch.float32"}.get(str(value), value if isinstance(value, (str, bool)) else str(value))


class _Torch:

    def __getattr__(self, name):
        return f"torch.{name}"


def differences(wanted, found):
    """Returns how the parameters of ours differ from those of the list, in words, or ""."""
    function = getattr(found, "fn", found)  # of a kernel's function
    try:
        ours = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        return f"no signature: {error}"
    if ours and ours[0].name == "self":
        del ours[0]
    theirs = ast.parse(f"def f({wanted}): pass").body[0].args
    defaults = [None] * (len(theirs.args) - len(theirs.defaults)) + theirs.defaults
    by_name = {parameter.name: parameter for parameter in ours}
    wrong, places = [], [p for p in ours if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for place, (parameter, default) in enumerate(
            [*zip(theirs.args, defaults), *zip(theirs.kwonlyargs, theirs.kw_defaults)]):
        here = by_name.pop(parameter.arg, None)
        if here is None:
            wrong.append(f"no {parameter.arg}")
        elif place < len(theirs.args) and (place >= len(places) or places[place] is not here):
            wrong.append(f"{parameter.arg} is not number {place + 1}")
        elif default is not None and here.default is here.empty:
            wrong.append(f"{parameter.arg} has no default")
        elif default is not None and _default(default) != _default(here.default) and not (
                here.default is None and str(_default(default)).startswith("torch.")):  # None: as torch's default
            wrong.append(f"{parameter.arg}={here.default}, not {ast.unparse(default)}")
    for vararg, kind in ((theirs.vararg, inspect.Parameter.VAR_POSITIONAL),
                         (theirs.kwarg, inspect.Parameter.VAR_KEYWORD)):
        if vararg and not [by_name.pop(p.name) for p in ours if p.kind is kind]:
            wrong.append(f"no *{vararg.arg}")
    wrong += [f"{p.name} is wanted, too" for p in by_name.values()
              if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return ", ".join(wrong)


def reason_for(each):
    """Returns why a name or its class is refused, or ""."""
    from iris import _modules
    known = _modules.names(each.module) if each.module in _modules.TABLE else {}
    sources = [known.get(name, ("", ""))[0] for name in (each.name, each.name.split(".")[0])]
    return next((_modules.REASONS[source[1:]] for source in sources if source.startswith("-")), "")


def compare(names, paths, page):
    """Returns a row for each name, (module, name, what ours is), and the mistakes, in words."""
    from iris import _modules
    rows = []
    said, wrong = read_page(page, {(each.module, name) for each in names
                                   for name in (each.name, each.name.split(".")[0])})
    for path, original in paths.items():
        if not _modules.refusal(original) and importlib.import_module(path) is not importlib.import_module(original):
            wrong.append(f"{path} is not {original}")
    for each in names:
        full = f"{each.module}.{each.name}"
        reason = reason_for(each)
        text = said.get((each.module, each.name)) or said.get((each.module, each.name.split(".")[0])) or ""
        if reason:
            state = REFUSED + reason
            if text != state:
                wrong.append(f"{full} is refused, and {PAGE} says \"{text[:60]}\", not the reason of _modules.py")
        else:
            try:
                found = found_in(each.module, each.name)
                state = "" if each.parameters is None else differences(each.parameters, found)
                state = f"{DIFFERENT}{state}" if state else SAME
            except (ImportError, AttributeError) as error:
                state = f"missing: {error}"
                wrong.append(f"{full} is missing: {error}")
            if text.startswith(REFUSED) or not text:
                wrong.append(f"{full} is {'refused only' if text else 'not'} in {PAGE}")
            elif state.startswith(DIFFERENT) and text == SAME:
                wrong.append(f"{full} is the same in {PAGE}, but: {state[len(DIFFERENT):]}")
        rows.append((each.module, each.name, state if state != SAME else text))
    return rows, wrong


def prepare():
    """Lets imports find the Triton that deploy/setup.sh fetches, and makes kernels ordinary functions."""
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.append("/usr/local/lib/iris/triton")


def read(root):
    """Returns the names, the second paths and the page of a source tree."""
    text, page = (open(os.path.join(root, path), encoding="utf-8").read() for path in (NAMES, PAGE))
    return (*read_names(text), page)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))),
                        help="the repository")
    parser.add_argument("--all", action="store_true", help="print each name beside ours, not the mistakes alone")
    options = parser.parse_args(argv)
    prepare()
    rows, wrong = compare(*read(options.root))
    if options.all:
        print("\n".join(f"{module + ':' + name:<72} {state}" for module, name, state in rows))
    print("\n".join(wrong))
    count = {state: sum(row[2].startswith(state) for row in rows) for state in (DIFFERENT, REFUSED, "missing")}
    print(f"{len(rows)} names: {len(rows) - sum(count.values())} the same, {count[DIFFERENT]} the same, but ..., "
          f"{count[REFUSED]} refused, {count['missing']} missing; {len(wrong)} mistakes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
