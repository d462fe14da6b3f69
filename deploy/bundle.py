"""Packs the bundle: bundle.py SPEC.json ARCHIVE.tar.xz ARCHIVE-user.tar.xz, called by iris_bundle in bundle.bzl.

The archive for users is without tests and benchmarks.

The tree may be moved anywhere: programs and libraries find each other relative to themselves ($ORIGIN), and so do the
CMake and pkg-config files. The machine that runs it needs the C and C++ libraries and nothing else: every other
library that a program is linked with lies in lib/.
"""

import json
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

# The machine's own are taken, of this version or newer. The vendors' are opened at run time, where there is a GPU.
NOT_CARRIED = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s)\.so.*|linux-vdso.*)$")
NOT_FOR_USERS = re.compile(r"^(bin/iris-gpu-check|libexec/iris/tests/.*|libexec/iris/\w+/(tests|bench)/.*)$")
SYSTEM_LIBRARIES = pathlib.Path("/usr/lib/x86_64-linux-gnu")


def fail(text):
    sys.exit(f"bundle.py: {text}")


def run(*command, **kwargs):
    result = subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)
    if result.returncode != 0:
        fail(f"{' '.join(map(str, command))[:300]} failed: {result.stderr.strip()}")
    return result.stdout


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", path))


class Tree:

    def __init__(self, root):
        self.root = pathlib.Path(root)

    def path(self, name):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def copy(self, source, name):
        path = self.path(name)
        if not path.exists():
            shutil.copyfile(source, path)
            path.chmod(0o755 if os.access(source, os.X_OK) or is_elf(source) else 0o644)
        return path

    def write(self, name, text):
        self.path(name).write_text(text, encoding="utf-8")

    def take(self, name):
        """The text of a file that the archive does not have."""
        text = self.path(name).read_text(encoding="utf-8")
        self.path(name).unlink()
        return text

    def files(self):
        """(path, name in the tree) of every file and link, in order."""
        for path in sorted(self.root.rglob("*")):
            if path.is_symlink() or path.is_file():
                yield path, str(path.relative_to(self.root))

    def elf_files(self):
        return [(path, name) for path, name in self.files()
                if not path.is_symlink() and path.suffix not in (".a", ".o") and is_elf(path)]


def remove_tests(tree):
    """Leaves what users need, without the libraries that only tests need."""
    for path, name in list(tree.files()):
        if NOT_FOR_USERS.match(name):
            path.unlink()
    kept = {"lib/" + library for path, _ in tree.elf_files() for library in needed(path)}
    for path, name in tree.elf_files():
        if re.match(r"lib/lib(?!iris)[^/]*$", name) and name not in kept:
            path.unlink()


def add_closure(tree):
    """Adds the libraries that programs need, and those that libraries need. Returns the packages that own them.

    Iris's own libraries have everything in them."""
    packages = set()
    wanted = [library for path, _ in tree.elf_files() for library in needed(path)]
    while wanted:
        library = wanted.pop()
        if NOT_CARRIED.match(library) or tree.path("lib/" + library).exists():
            continue
        if not (SYSTEM_LIBRARIES / library).exists():
            fail(f"{library} is not in {SYSTEM_LIBRARIES}")
        source = (SYSTEM_LIBRARIES / library).resolve()
        packages.add(owner(str(source)))
        wanted += needed(tree.copy(source, "lib/" + library))
    return packages


def owner(path):
    # Debian's list may have the file under /lib, which is the same folder.
    found = subprocess.run(["dpkg-query", "-S", path, path.replace("/usr/lib/", "/lib/", 1)], capture_output=True,
                           text=True, check=False).stdout
    return found.split(":")[0] or fail(f"{path} is in the bundle, but no package owns it: its licence is not known")


def make_relocatable(tree):
    for path, _ in tree.elf_files():
        path.chmod(0o755)
        run("strip", "--strip-unneeded", path)
        way = os.path.relpath(tree.root / "lib", path.parent)
        # RPATH, not RUNPATH: it holds for what the libraries need in turn.
        run("patchelf", "--force-rpath", "--set-rpath", "$ORIGIN" if way == "." else "$ORIGIN/" + way, path)


def add_device_library(tree, backend, archives, link_flags):
    """Adds the library that a program with kernels of a GPU links: it launches them. Returns what that needs.

    The emulator is a library, libiris_emu.so: a process has one."""
    if backend == "emu":
        return []
    rest = []
    for flag in link_flags:
        if flag.endswith("libcudart_static.a"):  # the user's toolkit has it, too
            rest.append("-lcudart_static")
        elif flag.startswith("-l") and not flag.startswith(("-labsl", "-l:")):
            rest.append(flag)
    if backend == "hip":  # the bundle's own programs find it at run time; a compiler of HIP brings it
        rest.append("-lamdhip64")
    archive = tree.path(f"lib/iris/{backend}/libiris_device.a")
    run("ar", "-M", input="\n".join([f"CREATE {archive}", *(f"ADDLIB {part}" for part in archives), "SAVE", "END", ""]))
    run("strip", "--strip-debug", archive)
    run("ranlib", archive)
    return rest


def add_licenses(tree, packages):
    notice = ["This bundle has parts of these packages of Debian in it. Their licences are beside this file.\n\n"]
    for package in sorted(packages):
        notice.append(f"{package} {run('dpkg-query', '-W', '-f=${Version}', package)}\n")
        tree.copy(f"/usr/share/doc/{package}/copyright", f"share/doc/iris/third_party/{package}.txt")
    tree.write("share/doc/iris/third_party/NOTICE", "".join(notice))


def add_pkg_config(tree, version, link_flags):

    def add(name, description, rest):
        tree.write(f"lib/pkgconfig/{name}.pc", f"""# Where this file lies, the rest is found: the bundle may be moved.
prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib

Name: {name}
Description: {description}
Version: {version}
{rest}
""")

    add("iris", "Symmetric heap for multi-GPU jobs: the host library",
        "Cflags: -I${prefix}/include\nLibs: -L${libdir} -Wl,-rpath,${libdir} -liris")
    for backend, flags in link_flags.items():
        libraries = "-liris_emu"
        if backend != "emu":
            libraries = f"${{libdir}}/iris/{backend}/libiris_device.a {' '.join(flags)} -lpthread"
        add(f"iris-device-{backend}", f"Kernels of a program's own on the {backend} backend of Iris",
            f"Requires: iris = {version}\nCflags: -DIRIS_BACKEND_{backend.upper()}=1 -DIRIS_KERNELS={backend}\n"
            f"Libs: {libraries}")


def add_cmake(tree, version, link_flags):
    text = tree.take("lib/cmake/Iris/IrisConfig.cmake.in")
    lines = "\n".join(f'set(_iris_{b}_link_flags "{";".join(flags)}")' for b, flags in link_flags.items())
    for name, value in (("VERSION", version), ("BACKENDS", " ".join(link_flags)), ("LINK_FLAGS", lines)):
        text = text.replace(f"@{name}@", value)
    tree.write("lib/cmake/Iris/IrisConfig.cmake", text)
    major = version.split(".")[0]
    tree.write("lib/cmake/Iris/IrisConfigVersion.cmake", f"""# A library serves programs of older minor versions.
set(PACKAGE_VERSION "{version}")
if(PACKAGE_FIND_VERSION MATCHES "^{major}(\\.|$)" AND NOT PACKAGE_FIND_VERSION VERSION_GREATER "{version}")
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL "{version}")
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
else()
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
""")


def pack(tree, name, archive, effort):
    """The same tree gives the same bytes. What programs have in common is packed once: the window spans all of them."""

    def plain(info):
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = "root"
        return info

    filters = [{"id": lzma.FILTER_LZMA2, "preset": effort, "dict_size": 64 << 20}]
    with lzma.open(archive, "wb", filters=filters) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path, inside in tree.files():
            tar.add(path, arcname=f"{name}/{inside}", filter=plain)


def main(spec_path, archive, for_users):
    with open(spec_path, encoding="utf-8") as file:
        spec = json.load(file)
    for tool in ("patchelf", "strip", "ar", "readelf", "dpkg-query"):
        if not shutil.which(tool):
            fail(f"{tool} is missing; deploy/setup.sh installs it")
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(os.path.join(folder, spec["name"]))
        for file in spec["files"]:
            tree.copy(file["from"], file["to"])
        for link, program in spec["links"].items():
            tree.path(link).symlink_to(program)
        version = spec["version"]
        there = re.search(r'kIrisVersion\[\] = "(.*)"', tree.take("version.h")).group(1)
        if there != version:
            fail(f"IRIS_VERSION in deploy/BUILD.bazel is {version}, in proto/wire/version.h {there}")
        # The names by which compilers find them: lib/libiris.so and its fellows.
        for library in sorted(tree.root.glob("lib/libiris*.so.*")):
            library.with_suffix("").symlink_to(library.name)
        flags = {b: add_device_library(tree, b, spec["archives"].get(b, []), spec["link_flags"].get(b, []))
                 for b in sorted(spec["backends"])}
        for header in spec["headers"]:
            tree.copy(header["from"], "include/" + header["to"])
        packages = add_closure(tree)
        make_relocatable(tree)
        add_pkg_config(tree, version, flags)
        add_cmake(tree, version, flags)
        add_licenses(tree, packages.union(spec["linked_packages"]))
        notes = spec["notes"] + "\n" if spec["notes"] else ""
        tree.write("share/doc/iris/CONTENTS",
                   f"Iris {version} for Linux on x86-64, device backends: {', '.join(flags)}.\n{notes}")
        pack(tree, spec["name"], archive, spec["effort"])
        remove_tests(tree)
        pack(tree, spec["name"], for_users, spec["effort"])


if __name__ == "__main__":
    main(*sys.argv[1:])
