"""Packs the bundle: bundle.py SPEC.json ARCHIVE.tar.xz ARCHIVE-user.tar.xz, called by iris_bundle in bundle.bzl.

The archive for users is without tests and benchmarks.

The tree may be moved anywhere: programs and libraries find each other relative to themselves ($ORIGIN), and so do the
CMake and pkg-config files. Of the machine that runs it, it needs the C and C++ libraries and nothing else: whatever
else a program is linked with lies in lib/.
"""

import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

# The machine's own are taken, of this version or newer. The vendors' are opened at run time, where there is a GPU.
NOT_CARRIED = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s)\.so.*|linux-vdso.*)$")
NOT_FOR_USERS = re.compile(r"^(bin/iris-gpu-check|libexec/iris/tests/.*|libexec/iris/\w+/(tests|bench)/.*)$")
SYSTEM_LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def run(*command, **kwargs):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **kwargs)
    if result.returncode != 0:
        sys.exit(f"bundle.py: {' '.join(command)[:300]} failed: {result.stderr.strip()}")
    return result.stdout


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", path))


class Tree:

    def __init__(self, root):
        self.root = root
        self.from_packages = set()  # files of the system that are in the bundle, as they are or linked in

    def path(self, name):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def copy(self, source, name):
        path = self.path(name)
        if os.path.exists(path):
            return path
        shutil.copyfile(source, path)
        os.chmod(path, 0o755 if os.access(source, os.X_OK) or is_elf(source) else 0o644)
        return path

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def elf_files(self):
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                if not os.path.islink(path) and not name.endswith((".a", ".o")) and is_elf(path):
                    yield path


def system_library(soname):
    path = os.path.join(SYSTEM_LIBRARIES, soname)
    if not os.path.exists(path):
        sys.exit(f"bundle.py: {soname} is not in {SYSTEM_LIBRARIES}")
    return os.path.realpath(path)


def name_libraries(tree):
    """Links lib/libiris.so and its fellows, the names by which compilers find them."""
    folder = os.path.join(tree.root, "lib")
    for name in sorted(os.listdir(folder)):
        if re.match(r"libiris.*\.so\.\d+$", name):
            os.symlink(name, os.path.join(folder, name[:name.rindex(".")]))


def remove_tests(tree):
    """Leaves what users need, without the libraries that nothing needs any more."""
    for folder, _, names in list(os.walk(tree.root)):
        for name in names:
            path = os.path.join(folder, name)
            if NOT_FOR_USERS.match(os.path.relpath(path, tree.root)):
                os.remove(path)
    kept = {"lib/" + name for path in tree.elf_files() for name in needed(path)}
    for path in list(tree.elf_files()):
        name = os.path.relpath(path, tree.root)
        if re.match(r"lib/lib(?!iris)[^/]*$", name) and name not in kept:
            os.remove(path)


def add_closure(tree):
    """Whatever programs need, and again what that needs. Iris's own libraries have everything in them."""
    wanted = [name for path in tree.elf_files() for name in needed(path)]
    while wanted:
        name = wanted.pop()
        if NOT_CARRIED.match(name) or os.path.exists(tree.path("lib/" + name)):
            continue
        source = system_library(name)
        tree.from_packages.add(source)
        wanted += needed(tree.copy(source, "lib/" + name))


def make_relocatable(tree):
    lib = os.path.join(tree.root, "lib")
    for path in list(tree.elf_files()):
        os.chmod(path, 0o755)
        run("strip", "--strip-unneeded", path)
        way = os.path.relpath(lib, os.path.dirname(path))
        # RPATH, not RUNPATH: it holds for what the libraries need in turn.
        run("patchelf", "--force-rpath", "--set-rpath", "$ORIGIN" if way == "." else "$ORIGIN/" + way, path)


def add_device_library(tree, backend, archives, link_flags):
    """What a program with kernels of a GPU links beside the libraries: what starts them. Returns what that needs.

    The emulator is a library, libiris_emu.so: a process has one."""
    rest = []
    for flag in link_flags:
        if flag.endswith("libcudart_static.a"):  # the user's toolkit has it, too
            rest.append("-lcudart_static")
        elif flag.startswith("-l") and not flag.startswith(("-labsl", "-l:")):
            rest.append(flag)
    if backend == "emu":
        return []
    if backend == "hip":  # the bundle's own programs find it at run time; who compiles HIP has it
        rest.append("-lamdhip64")
    archive = tree.path(f"lib/iris/{backend}/libiris_device.a")
    script = "".join([f"CREATE {archive}\n"] + [f"ADDLIB {part}\n" for part in archives] + ["SAVE\nEND\n"])
    run("ar", "-M", input=script)
    run("strip", "--strip-debug", archive)
    run("ranlib", archive)
    return rest


def add_headers(tree, headers):
    for header in headers:
        tree.copy(header["from"], "include/" + header["to"])


def add_licenses(tree, linked_packages):
    packages = {package: True for package in linked_packages}
    for path in sorted(tree.from_packages):
        # Debian's list may have the file under /lib, which is the same folder.
        for name in (path, path.replace("/usr/lib/", "/lib/", 1)):
            result = subprocess.run(["dpkg-query", "-S", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                    text=True, check=False)
            if result.returncode == 0:
                packages[result.stdout.split(":")[0]] = True
                break
        else:
            sys.exit(f"bundle.py: {path} is in the bundle, but no package owns it: its licence is not known")
    notice = ["This bundle has parts of these packages of Debian in it. Their licences are beside this file.\n\n"]
    for package in sorted(packages):
        version = run("dpkg-query", "-W", "-f=${Version}", package)
        notice.append(f"{package} {version}\n")
        tree.copy(f"/usr/share/doc/{package}/copyright", f"share/doc/iris/third_party/{package}.txt")
    tree.write("share/doc/iris/third_party/NOTICE", "".join(notice))


PC = """# Where this file lies, the rest is found: the bundle may be moved.
prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib

Name: {name}
Description: {description}
Version: {version}
{rest}"""


def add_pkg_config(tree, version, backends, link_flags):
    tree.write("lib/pkgconfig/iris.pc", PC.format(
        name="iris", version=version, description="Symmetric heap for multi-GPU jobs: the host library",
        rest="Cflags: -I${prefix}/include\nLibs: -L${libdir} -Wl,-rpath,${libdir} -liris\n"))
    for backend in backends:
        libraries = "-liris_emu"
        if backend != "emu":
            libraries = f"${{libdir}}/iris/{backend}/libiris_device.a {' '.join(link_flags[backend])} -lpthread"
        tree.write(f"lib/pkgconfig/iris-device-{backend}.pc", PC.format(
            name=f"iris-device-{backend}", version=version,
            description=f"Kernels of a program's own on the {backend} backend of Iris",
            rest=f"Requires: iris = {version}\nCflags: -DIRIS_BACKEND_{backend.upper()}=1 -DIRIS_KERNELS={backend}\n"
                 f"Libs: {libraries}\n"))


def add_cmake(tree, version, backends, link_flags):
    template = tree.path("lib/cmake/Iris/IrisConfig.cmake.in")
    with open(template, encoding="utf-8") as file:
        text = file.read()
    os.remove(template)
    for name, value in {
            "VERSION": version, "BACKENDS": " ".join(backends),
            "LINK_FLAGS": "\n".join(f'set(_iris_{b}_link_flags "{";".join(link_flags[b])}")' for b in backends),
    }.items():
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


def check_version(tree, version):
    path = tree.path("version.h")
    with open(path, encoding="utf-8") as file:
        there = re.search(r'kIrisVersion\[\] = "(.*)"', file.read()).group(1)
    os.remove(path)
    if there != version:
        sys.exit(f"bundle.py: IRIS_VERSION in deploy/BUILD.bazel is {version}, in proto/wire/version.h {there}")


def pack(tree, name, archive):
    """The same tree gives the same bytes. What programs have in common is packed once: the window spans all of them."""

    def plain(info):
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = "root"
        return info

    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20}]
    with lzma.open(archive, "wb", filters=filters) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for folder, folders, names in os.walk(tree.root):
            folders.sort()
            for each in sorted(names) + [f for f in folders if os.path.islink(os.path.join(folder, f))]:
                path = os.path.join(folder, each)
                tar.add(path, arcname=os.path.join(name, os.path.relpath(path, tree.root)), filter=plain)


def main(spec_path, archive, for_users):
    with open(spec_path, encoding="utf-8") as file:
        spec = json.load(file)
    for tool in ("patchelf", "strip", "ar", "readelf", "dpkg-query"):
        if not shutil.which(tool):
            sys.exit(f"bundle.py: {tool} is missing; deploy/setup.sh installs it")
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(os.path.join(folder, spec["name"]))
        for file in spec["files"]:
            tree.copy(file["from"], file["to"])
        for link, program in spec["links"].items():
            os.symlink(program, tree.path(link))
        version = spec["version"]
        check_version(tree, version)
        name_libraries(tree)
        backends = sorted(spec["backends"])
        flags = {b: add_device_library(tree, b, spec["archives"].get(b, []), spec["link_flags"].get(b, []))
                 for b in backends}
        add_headers(tree, spec["headers"])
        add_closure(tree)
        make_relocatable(tree)
        add_pkg_config(tree, version, backends, flags)
        add_cmake(tree, version, backends, flags)
        add_licenses(tree, spec["linked_packages"])
        tree.write("share/doc/iris/CONTENTS", "".join(
            [f"Iris {version} for Linux on x86-64, device backends: {', '.join(backends)}.\n"] +
            ([spec["notes"] + "\n"] if spec["notes"] else [])))
        pack(tree, spec["name"], archive)
        remove_tests(tree)
        pack(tree, spec["name"], for_users)


if __name__ == "__main__":
    main(*sys.argv[1:])
