// The objects of tensor handles: a view, and the memory that it shares with others. Inside
// client/abi.
//
// Thread-safe. A storage ends with its last view. Its memory in the heap stays until the job ends,
// because freeing it is collective.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/abi/loans.h"
#include "client/abi/objects.h"
#include "client/abi/views.h"

namespace iris::abi {

struct DLManagedTensor;

struct Storage {
  explicit Storage(std::shared_ptr<ContextState> s) : state(std::move(s)) {}
  ~Storage();

  // Returns "the tensor 'x'" or "a tensor" for messages.
  std::string Name() const;
  // Returns the error for memory that was freed.
  absl::Status Freed() const;
  // Returns kFailedPrecondition if the memory was freed, or if its context is not usable any more.
  absl::Status Usable() const;

  const std::shared_ptr<ContextState> state;
  Allocation allocation;  // of the heap
  Team team;              // that allocated it
  std::string name;
  Loans exports;                       // DLPack tensors whose deleters were not called
  DLManagedTensor* foreign = nullptr;  // of another library; the destructor calls its deleter
};

struct TensorObject : Object {
  static constexpr Kind kKind = Kind::kTensor;
  TensorObject(std::shared_ptr<Storage> s, const View& v, uint32_t r)
      : state(s->state), storage(std::move(s)), view(v), rank(r) {}

  // The address of the first element.
  char* address() const;

  const std::shared_ptr<ContextState> state;
  const std::shared_ptr<Storage> storage;
  const View view;
  const uint32_t rank;  // that has this copy
};

absl::Status GiveTensor(std::shared_ptr<Storage> storage, const View& view, uint32_t rank,
                        iris_tensor** out);

// Runs `body` with `stream`. If `stream` is null, uses a stream of the library in the tensor's
// context, and then waits for the stream.
using OnStreamBody =
    absl::FunctionRef<absl::Status(const backend::BackendOperations&, backend::Stream&)>;
absl::Status OnTensorStream(const TensorObject& tensor, iris_stream* stream, OnStreamBody body);

}  // namespace iris::abi
