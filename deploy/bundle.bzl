"""iris_bundle: the relocatable archive of everything that a user of Iris needs, for several device backends at once.

    for_backend(name = "emu_files", backend = "emu", programs = {...})     what is built for a backend, optimized
    iris_bundle(name = "bundle", parts = [":emu_files"], ...)              the archives, by bundle.py
    static_libraries(name = "static_grpc", libraries = [...])              -lX means libX.a for who depends on it
"""

BundlePart = provider(fields = {
    "backend": "emu, cuda or hip",
    "programs": "list of (File, where it goes)",
    "links": "dict: where a program is found by another name, to its name",
    "headers": "depset of File",
    "archives": "depset of File: static libraries of device code",
    "link_flags": "list of str: what these need",
})

# One configuration for all of a backend, so that nothing is compiled twice. Programs share the library of their backend
# with each other and with the host library. NVIDIA's have code for the newest GPUs alone, or the bundle would be too
# large; AMD's code is for one kind of GPU each, so it is all there.
def _bundle_transition_impl(settings, attr):
    return {
        "//:backend": attr.backend,
        "//:gpus": "newest" if attr.backend == "cuda" else "all",
        "//deploy:bundled": True,
        "//deploy:shared_kernels": True,
        "//command_line_option:compilation_mode": "opt",
        "//command_line_option:force_pic": True,  # one compilation serves programs and shared libraries
        "//command_line_option:platform_suffix": "-bundle-" + attr.backend,
    }

_bundle_transition = transition(
    implementation = _bundle_transition_impl,
    inputs = [],
    outputs = [
        "//:backend",
        "//:gpus",
        "//deploy:bundled",
        "//deploy:shared_kernels",
        "//command_line_option:compilation_mode",
        "//command_line_option:force_pic",
        "//command_line_option:platform_suffix",
    ],
)

# Bazel names the folder of a configuration after the options that transitions have changed on the way to it. Programs
# for GPUs reach libiris.so by way of their own backend, so everything else of such a bundle is reached that way too:
# it would be compiled twice otherwise.
def _by_way_of_impl(settings, attr):
    return {"//:backend": attr.by_way_of, "//:gpus": "newest"} if attr.by_way_of else settings

_by_way_of = transition(
    implementation = _by_way_of_impl,
    inputs = [
        "//:backend",
        "//:gpus",
    ],
    outputs = [
        "//:backend",
        "//:gpus",
    ],
)

_ALLOWLIST = {
    "_allowlist_function_transition": attr.label(
        default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
    ),
}

# Packages whose static libraries are device code; the host part is in libiris.so.
def _is_device_code(label):
    return label.package.startswith("device/iris/backend")

def _for_backend_impl(ctx):
    programs = []
    for target, to in ctx.attr.programs.items():
        files = target[DefaultInfo].files.to_list()
        for f in files:
            programs.append((f, to + f.basename if to.endswith("/") else to))
    headers = []
    archives = []
    flags = []
    for target in ctx.attr.libraries:
        headers.append(target[CcInfo].compilation_context.headers)
        for linker_input in target[CcInfo].linking_context.linker_inputs.to_list():
            flags.extend([f for f in linker_input.user_link_flags if f not in flags])
            for library in linker_input.libraries:
                archive = library.pic_static_library or library.static_library
                if archive and _is_device_code(linker_input.owner):
                    archives.append(archive)
    return [
        BundlePart(
            backend = ctx.attr.backend,
            programs = programs,
            links = ctx.attr.links,
            headers = depset(transitive = headers),
            archives = depset(archives),
            link_flags = flags,
        ),
        DefaultInfo(files = depset([f for f, _ in programs] + archives)),
    ]

for_backend = rule(
    implementation = _for_backend_impl,
    attrs = dict(
        backend = attr.string(mandatory = True, values = ["emu", "cuda", "hip"]),
        # The destination of each file; one that ends in / is a folder.
        programs = attr.label_keyed_string_dict(cfg = _bundle_transition, allow_files = True),
        links = attr.string_dict(doc = "a program by another name: where that lies, and what lies beside it"),
        libraries = attr.label_list(cfg = _bundle_transition, providers = [CcInfo]),
        **_ALLOWLIST
    ),
)

# Files as the configuration of the bundle builds them, whatever configuration asks.
def _host_files_impl(ctx):
    files = depset(transitive = [t[DefaultInfo].files for t in ctx.attr.srcs])
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(transitive_files = files))]

bundled_host_files = rule(
    implementation = _host_files_impl,
    attrs = dict(
        srcs = attr.label_list(cfg = _bundle_transition, allow_files = True),
        backend = attr.string(default = "emu"),  # host code is the same for all
        **_ALLOWLIST
    ),
)

def _iris_bundle_impl(ctx):
    name = "iris-%s-linux-x86_64" % ctx.attr.version
    archive = ctx.actions.declare_file("%s/%s.tar.xz" % (ctx.label.name, name))
    for_users = ctx.actions.declare_file("%s/%s-user.tar.xz" % (ctx.label.name, name))
    inputs = []
    links = {}
    files = []
    headers = []
    device_libraries = {}
    link_flags = {}
    for part in [t[BundlePart] for t in ctx.attr.parts]:
        for f, to in part.programs:
            inputs.append(f)
            files.append({"from": f.path, "to": to})
        links.update(part.links)
        part_headers = [
            f
            for f in part.headers.to_list()
            if f.short_path.startswith(("client/iris/", "device/iris/"))
        ]
        inputs.extend(part_headers)

        # By the paths under which programs include them.
        headers.extend([{"from": f.path, "to": f.short_path.partition("/")[2]} for f in part_headers])
        part_archives = part.archives.to_list()
        inputs.extend(part_archives)
        if part_archives:
            device_libraries[part.backend] = [f.path for f in part_archives]
            link_flags[part.backend] = part.link_flags
    for target, to in ctx.attr.files.items():
        for f in target[DefaultInfo].files.to_list():
            inputs.append(f)
            files.append({"from": f.path, "to": to + f.basename if to.endswith("/") else to})
    spec = ctx.actions.declare_file("%s/spec.json" % ctx.label.name)
    ctx.actions.write(spec, struct(
        name = name,
        version = ctx.attr.version,
        notes = ctx.attr.notes,
        files = files,
        links = links,
        headers = headers,
        backends = [t[BundlePart].backend for t in ctx.attr.parts],
        archives = device_libraries,
        link_flags = link_flags,
        linked_packages = ctx.attr.linked_packages,
        effort = ctx.attr.effort,
    ).to_json())
    ctx.actions.run_shell(
        inputs = inputs + [spec, ctx.file._packer],
        outputs = [archive, for_users],
        command = "PATH=/usr/sbin:/usr/bin:/sbin:/bin exec python3 %s %s %s %s" % (
            ctx.file._packer.path,
            spec.path,
            archive.path,
            for_users.path,
        ),
        mnemonic = "IrisBundle",
        progress_message = "Packing " + archive.basename,
    )
    archives = [archive, for_users]
    return [DefaultInfo(files = depset(archives), runfiles = ctx.runfiles(files = archives))]

iris_bundle = rule(
    implementation = _iris_bundle_impl,
    attrs = dict(
        version = attr.string(mandatory = True),
        notes = attr.string(doc = "a line for the bundle's README: what it lacks"),
        linked_packages = attr.string_list(doc = "Debian's, whose code is compiled or linked into programs"),
        effort = attr.int(default = 6, doc = "the preset of xz, from 0 (fast) to 9"),
        by_way_of = attr.string(doc = "a backend for GPUs whose programs are among the parts; empty if there is none"),
        parts = attr.label_list(cfg = _by_way_of, providers = [BundlePart]),
        files = attr.label_keyed_string_dict(cfg = _by_way_of, allow_files = True),
        _packer = attr.label(default = "//deploy:bundle.py", allow_single_file = True),
        **_ALLOWLIST
    ),
)

def _static_libraries_impl(ctx):
    if not ctx.attr.enabled:
        return [CcInfo()]
    folder = ctx.attr.system_folder
    scripts = []
    names = [ctx.attr.instead.get(library, library) for library in ctx.attr.libraries] + ctx.attr.closure
    group = " ".join(["%s/lib%s.a" % (folder, name) for name in names])
    for library in ctx.attr.libraries:
        script = ctx.actions.declare_file("%s/lib%s.a" % (ctx.label.name, library))
        ctx.actions.write(script, "GROUP ( %s )\n" % group)
        scripts.append(script)
    return [CcInfo(linking_context = cc_common.create_linking_context(linker_inputs = depset([
        cc_common.create_linker_input(
            owner = ctx.label,
            # The linker searches this folder before the system's folders.
            user_link_flags = depset(["-L" + scripts[0].dirname]),
            additional_inputs = depset(scripts),
        ),
    ])))]

# A folder of linker scripts, each of which stands for the archive of the same name and all that it may need.
static_libraries = rule(
    implementation = _static_libraries_impl,
    attrs = {
        "enabled": attr.bool(),
        "libraries": attr.string_list(doc = "what linkopts name"),
        "instead": attr.string_dict(doc = "the archive of another library for one that linkopts name"),
        "closure": attr.string_list(doc = "what these need"),
        "system_folder": attr.string(default = "/usr/lib/x86_64-linux-gnu"),
    },
)
