"""Messages and gRPC stubs of .proto files, made by the system's protoc."""

def _generated(name, srcs, suffix, flags, deps, visibility):
    stems = [src[:-len(".proto")] for src in srcs]
    native.genrule(
        name = name + "_gen",
        srcs = srcs,
        outs = [stem + suffix + end for stem in stems for end in (".h", ".cc")],
        cmd = "PATH=/usr/bin:/bin protoc -I. %s $(SRCS)" % flags,
        message = "Generating C++ from protocol buffers",
    )
    native.cc_library(
        name = name,
        srcs = [stem + suffix + ".cc" for stem in stems],
        hdrs = [stem + suffix + ".h" for stem in stems],
        copts = ["-w"],
        # The linker drops shared libraries that only generated code needs.
        linkstatic = True,
        visibility = visibility,
        deps = deps,
    )

def iris_cc_proto_library(name, srcs, stubs = None, visibility = None):
    """C++ messages from .proto files of this package and, apart from them, gRPC's stubs of their services.

    Args:
      name: the cc_library of the messages (.pb.h), which needs no gRPC.
      srcs: .proto files; they import each other by their path from the repository root.
      stubs: the cc_library of the stubs (.grpc.pb.h), if anybody needs them. It has the messages too.
      visibility: as usual.
    """
    _generated(name, srcs, ".pb", "--cpp_out=$(GENDIR)", ["//third_party:protobuf"], visibility)
    if stubs:
        _generated(
            stubs,
            srcs,
            ".grpc.pb",
            "--grpc_out=$(GENDIR) --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin",
            [":" + name, "//third_party:grpc"],
            visibility,
        )
