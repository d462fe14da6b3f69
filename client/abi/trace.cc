// Tracing: start, stop, spans and files.
#include <string>
#include <vector>

#include "client/abi/objects.h"
#include "client/trace/trace_merge.h"
#include "client/trace/trace_recorder.h"

using namespace iris::abi;  // functions in C have no namespace of their own
namespace internal = iris::internal;

namespace {

absl::StatusOr<internal::TraceRecorder*> TraceOf(const ContextObject& object) {
  IRIS_ABI_TRY(object.host().Usable());
  internal::TraceRecorder* const trace = object.host().trace();
  if (trace != nullptr) return trace;
  return absl::FailedPreconditionError(
      "the job has no room for a trace: heaps of 256 MiB and more have it by themselves. Start all "
      "ranks with IRIS_TRACE_EVENTS=16384 in the environment (1 MiB of each heap)");
}

}  // namespace

iris_code iris_trace_start(iris_context* context, int64_t limit_ns) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(CheckTime(limit_ns, "start the trace: limit_ns"));
    const auto trace = TraceOf(object);
    return trace.ok() ? (*trace)->Start(absl::Nanoseconds(limit_ns)) : trace.status();
  });
}

iris_code iris_trace_stop(iris_context* context) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    const auto trace = TraceOf(object);
    return trace.ok() ? (*trace)->Stop() : trace.status();
  });
}

iris_code iris_trace_write(iris_context* context, const char* path) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(path, "write the trace: the path"));
    const auto trace = TraceOf(object);
    return trace.ok() ? (*trace)->Save(path) : trace.status();
  });
}

iris_code iris_trace_span_begin(iris_context* context, uint64_t* out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "begin a span of the trace: out"));
    IRIS_ABI_TRY(object.host().Usable());
    const internal::TraceRecorder* const trace = object.host().trace();
    *out = trace == nullptr ? 0 : trace->BeginSpan();
    return absl::OkStatus();
  });
}

iris_code iris_trace_span_end(iris_context* context, uint64_t begin, const char* name) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(name, "end a span of the trace: the name"));
    IRIS_ABI_TRY(object.host().Usable());
    internal::TraceRecorder* const trace = object.host().trace();
    IRIS_ABI_TRY(internal::TraceRecorder::CheckSpanName(name));
    return trace == nullptr ? absl::OkStatus() : trace->EndSpan(begin, name);
  });
}

iris_code iris_trace_merge(const char* const* paths, size_t n_paths, const char* out) {
  return Run([&]() -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "merge traces: out"));
    if (n_paths > 0) IRIS_ABI_TRY(NotNull(paths, "merge traces: paths"));
    if (n_paths > internal::kMergedFilesMax) {
      return Invalid("merge ", n_paths, " traces: give 1 to ", internal::kMergedFilesMax, " files");
    }
    std::vector<std::string> files;
    for (size_t i = 0; i < n_paths; ++i) {
      IRIS_ABI_TRY(NotNull(paths[i], absl::StrCat("merge traces: path ", i)));
      files.push_back(paths[i]);
    }
    return internal::MergeTraceFiles(files, out).status();
  });
}
