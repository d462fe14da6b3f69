"""iris_cc_proto_library: messages and gRPC stubs of a set of .proto files, made by the system's protoc."""

def iris_cc_proto_library(name, srcs, visibility = None):
    """C++ messages and gRPC services from .proto files of this package.

    Args:
      name: the cc_library.
      srcs: .proto files; they import each other by their path from the repository root.
      visibility: as usual.
    """
    outs = []
    for src in srcs:
        base = src[:-len(".proto")]
        outs += [base + suffix for suffix in (".pb.h", ".pb.cc", ".grpc.pb.h", ".grpc.pb.cc")]
    native.genrule(
        name = name + "_gen",
        srcs = srcs,
        outs = outs,
        cmd = "PATH=/usr/bin:/bin protoc -I. --cpp_out=$(GENDIR) --grpc_out=$(GENDIR) " +
              "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin $(SRCS)",
        message = "Generating C++ from protocol buffers",
    )
    native.cc_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".cc")],
        hdrs = [o for o in outs if o.endswith(".h")],
        copts = ["-w"],
        # The linker drops shared libraries that only generated code needs.
        linkstatic = True,
        visibility = visibility,
        deps = [
            "//third_party:grpc",
            "//third_party:protobuf",
        ],
    )
