// Memory of a context's heap for torch's own tensors: the two functions of a pluggable allocator of
// torch, and the call that chooses the heap.
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/abi/objects.h"
#include "client/backend/device_status.h"
#include "client/base/log.h"
#include "device/base/bytes.h"

using namespace iris::abi;  // functions in C have no namespace of their own
namespace backend = iris::backend;
namespace internal = iris::internal;

namespace {

// The allocated blocks by address, which is all that torch passes, from any thread, also after a
// context has ended. Never destroyed.
struct Blocks {
  struct Block {
    iris_context* context = nullptr;
    iris::Allocation allocation;
  };
  // The blocks at one address. There is more than one if torch keeps a block of a context that has
  // ended, and a later context has its heap at the same place. A free then does not say which block
  // it is for, so all of them end with the last.
  struct Place {
    std::vector<Block> blocks;
    size_t n_freed = 0;
  };
  absl::Mutex mu;
  iris_context* context ABSL_GUARDED_BY(mu) = nullptr;
  int32_t device ABSL_GUARDED_BY(mu) = 0;
  std::map<void*, Place> all ABSL_GUARDED_BY(mu);
};

Blocks& GetBlocks() {
  static Blocks* const blocks = new Blocks();
  return *blocks;
}

absl::StatusOr<void*> Allocate(int64_t bytes, int32_t device) {
  Blocks& blocks = GetBlocks();
  iris_context* context = nullptr;
  {
    absl::MutexLock lock(&blocks.mu);
    context = blocks.context;
    if (context == nullptr) {
      return absl::FailedPreconditionError(
          "no context gives torch memory in this process: call iris_torch_use first");
    }
    if (device != blocks.device) {
      return Invalid("torch asks for memory of device ", device, ", and the heap is on device ",
                     blocks.device, ": make that one torch's current device");
    }
  }
  if (bytes <= 0) return Invalid(bytes, " bytes are no memory");
  const Held<ContextObject> held(context);
  if (!held) return Unknown<ContextObject>(context);
  iris::AllocateOptions options;
  options.bytes = static_cast<uint64_t>(bytes);
  IRIS_ASSIGN_OR_RETURN(auto allocation, held->host().teams().AllocateLocal(options));
  void* const address = allocation.address;
  absl::MutexLock lock(&blocks.mu);
  blocks.all[address].blocks.push_back({context, std::move(allocation)});
  return address;
}

// Waits for the stream's work on memory that torch frees, as the platform's own free does. A null
// stream means no stream if the platform has no default one.
absl::Status AwaitStream(ContextObject& context, void* stream) {
  IRIS_ASSIGN_OR_RETURN(const auto table, context.state->Backend());
  backend::Stream* const on = table->BorrowStream(stream);
  if (on == nullptr) return absl::ResourceExhaustedError("no host memory");
  const bool waits = stream != nullptr || !table->Idle(*on);
  absl::Status status;
  if (waits) {
    status = internal::FromDevice(table->Synchronize(*on), "wait for the stream of the memory");
  }
  table->DestroyStream(on);
  return status;
}

absl::Status FreeBlock(const Blocks::Block& block, void* stream) {
  const Held<ContextObject> held(block.context);
  // All memory has ended with its context.
  if (!held || !held->host().Usable().ok()) return absl::OkStatus();
  if (const absl::Status waited = AwaitStream(*held, stream); !waited.ok()) {
    return absl::Status(
        waited.code(),
        absl::StrCat("iris_torch_free: ", waited.message(), ". The ",
                     iris::base::SizeText(block.allocation.bytes),
                     " stay until the context ends, since something may use them still"));
  }
  return held->host().teams().Free(block.allocation);
}

absl::Status Free(void* memory, void* stream) {
  Blocks& blocks = GetBlocks();
  Blocks::Place place;
  {
    absl::MutexLock lock(&blocks.mu);
    const auto found = blocks.all.find(memory);
    if (found == blocks.all.end()) {
      return Invalid("iris_torch_malloc has not given this memory, or it is free");
    }
    if (++found->second.n_freed < found->second.blocks.size()) return absl::OkStatus();
    place = std::move(found->second);
    blocks.all.erase(found);
  }
  absl::Status status;
  for (const Blocks::Block& block : place.blocks) status.Update(FreeBlock(block, stream));
  return status;
}

// Logs an error, because torch cannot take its text.
absl::Status Said(const absl::Status& status) {
  if (!status.ok()) iris::log::Warning(status.message());
  return status;
}

}  // namespace

iris_code iris_torch_use(iris_context* context, int32_t device) {
  const auto use = [&] {
    Blocks& blocks = GetBlocks();
    absl::MutexLock lock(&blocks.mu);
    blocks.context = context;
    blocks.device = device;
    return absl::OkStatus();
  };
  if (context == nullptr) return Run(use);
  return With<ContextObject>(context, [&](ContextObject& object) {
    const absl::Status usable = object.host().Usable();
    return usable.ok() ? use() : usable;
  });
}

void* iris_torch_malloc(int64_t bytes, int32_t device, void* /*stream*/) {
  void* memory = nullptr;
  (void)Run([&]() -> absl::Status {
    const absl::StatusOr<void*> given = Allocate(bytes, device);
    if (given.ok()) memory = *given;
    return Said(given.status());
  });
  return memory;
}

void iris_torch_free(void* memory, int64_t /*bytes*/, int32_t /*device*/, void* stream) {
  if (memory == nullptr) return;
  (void)Run([&] { return Said(Free(memory, stream)); });
}
