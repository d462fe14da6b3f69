// Tensors: making and freeing them, views, values.
#include "client/abi/tensor.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "client/abi/dlpack.h"
#include "client/abi/fill.h"
#include "client/backend/device_status.h"

namespace iris::abi {

Storage::~Storage() {
  if (foreign != nullptr && foreign->deleter != nullptr && state->host->OwnProcess()) {
    foreign->deleter(foreign);
  }
}

std::string Storage::Name() const {
  return name.empty() ? "a tensor" : absl::StrCat("the tensor '", name, "'");
}

absl::Status Storage::Freed() const {
  return absl::FailedPreconditionError(
      absl::StrCat(Name(), " of the heap was used after it was freed: create another one"));
}

absl::Status Storage::Usable() const {
  if (exports.freed()) return Freed();
  if (absl::Status usable = state->host->Usable(); !usable.ok()) {
    return absl::Status(usable.code(), absl::StrCat(Name(), " was used after the end of its ",
                                                    "context: ", usable.message()));
  }
  return absl::OkStatus();
}

char* TensorObject::address() const {
  if (storage->foreign != nullptr) {
    const DLTensor& from = storage->foreign->dl_tensor;
    return static_cast<char*>(from.data) + from.byte_offset + view.offset_bytes;
  }
  char* const mine = storage->allocation.As<char>();
  if (mine == nullptr) return nullptr;
  return state->host->Translate(rank, mine) + view.offset_bytes;
}

absl::Status GiveTensor(std::shared_ptr<Storage> storage, const View& view, uint32_t rank,
                        iris_tensor** out) {
  ContextState& state = *storage->state;
  return state.Give(std::make_unique<TensorObject>(std::move(storage), view, rank), out);
}

absl::Status OnTensorStream(const TensorObject& tensor, iris_stream* stream, OnStreamBody body) {
  if (stream != nullptr) {
    const Held<StreamObject> held(stream);
    if (!held) return Unknown<StreamObject>(stream);
    if (held->state != tensor.state) {
      return Invalid(
          "the stream and the tensor belong to different contexts: make or wrap the stream with "
          "the context that the tensor was made with");
    }
    return body(*held->backend, **held);
  }
  IRIS_ASSIGN_OR_RETURN(const auto table, tensor.state->Backend());
  backend::Stream* own = nullptr;
  IRIS_ABI_TRY(internal::FromDevice(table->CreateStream(&own), "create a stream"));
  absl::Status status = body(*table, *own);
  absl::Status waited = internal::FromDevice(table->Synchronize(*own), "wait for a tensor");
  table->DestroyStream(own);
  return status.ok() ? waited : status;
}

namespace {

template <typename Body>
iris_code OnTensor(const iris_tensor* tensor, Body body) noexcept {
  return With<TensorObject>(tensor, [&](TensorObject& object) -> absl::Status {
    IRIS_ABI_TRY(object.storage->Usable());
    return body(object);
  });
}

// Makes a view of the same copy by `make`.
template <typename Make>
iris_code ViewOf(const iris_tensor* tensor, iris_tensor** out, Make make) noexcept {
  return OnTensor(tensor, [&](TensorObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "a view: the place for the handle"));
    IRIS_ASSIGN_OR_RETURN(const auto view, make(object.view));
    return GiveTensor(object.storage, view, object.rank, out);
  });
}

template <typename T>
absl::StatusOr<absl::Span<const T>> ListOf(const T* list, uint32_t n, const char* what) {
  if (n > 0) IRIS_ABI_TRY(NotNull(list, what));
  // One number more than the limit is enough for a refusal.
  return absl::Span<const T>(list, std::min(n, kMaxDims + 1));
}

absl::StatusOr<fill::Description> DescribeFillOf(const View& view, iris_fill_options given) {
  if (given.dtype == IRIS_DTYPE_NONE) given.dtype = static_cast<iris_dtype>(view.dtype);
  if (given.dtype != static_cast<iris_dtype>(view.dtype)) {
    return Invalid("fill: a tensor of ", DTypeName(view.dtype), " was to get elements of type ",
                   given.dtype, ": leave the type out, or give the tensor's");
  }
  if (given.n_dims != 0) {
    return Invalid(
        "fill: a tensor has its own shape and strides: leave n_dims at 0, and fill a view of it");
  }
  const uint64_t count = view.count();
  if (given.count != 0 && given.count != count) {
    return Invalid("fill: a tensor of shape ", ShapeText(view), " has ", count, " elements, and ",
                   given.count, " were to be filled: fill a slice of it");
  }
  return DescribeFill(given, count);
}

absl::Status FillTensor(const TensorObject& object, const fill::Description& described,
                        uint64_t first, iris_stream* stream) {
  const View& view = object.view;
  if (view.count() == 0) return absl::OkStatus();
  return OnTensorStream(
      object, stream,
      [&](const backend::BackendOperations& backend, backend::Stream& on) -> absl::Status {
        fill::Sequence sequence;
        IRIS_ABI_TRY(internal::FromDevice(backend.MakeSequence(described, &sequence), "fill"));
        return internal::FromDevice(
            backend.Fill(sequence, first, PlaceOf(view, object.address()), on), "fill");
      });
}

// Returns true if the fill sets all bytes to 0.
bool SetsZeros(const fill::Description& fill) {
  return fill.kind == fill::Kind::kValue && fill.start == 0 && !std::signbit(fill.start) &&
         fill.whole_start == 0;
}

absl::Status Create(ContextObject& object, const Team& team, const iris_tensor_options& given,
                    iris_tensor** out) {
  IRIS_ASSIGN_OR_RETURN(const auto shape,
                        ListOf(given.shape, given.n_dims, "create a tensor: the shape"));
  const bool known = given.dtype >= 0 && given.dtype < static_cast<int>(kDTypeCount);
  IRIS_ASSIGN_OR_RETURN(const auto view,
                        MakeView(known ? static_cast<DType>(given.dtype) : DType::kNone, shape));
  iris_fill_options values = {};
  fill::Description described;
  if (given.fill != nullptr) {
    IRIS_ASSIGN_OR_RETURN(values, ReadStruct(given.fill, kFillOptionsBytes, "iris_fill_options"));
    IRIS_ASSIGN_OR_RETURN(const auto checked, DescribeFillOf(view, values));
    described = checked;
  }
  if (given.stream != nullptr) {
    const Held<StreamObject> held(given.stream);
    if (!held) return Unknown<StreamObject>(given.stream);
    if (held->state != object.state) {
      return Invalid(
          "create a tensor: the stream belongs to another context: make or wrap it with this one");
    }
  }
  auto storage = std::make_shared<Storage>(object.state);
  storage->team = team;
  storage->name = TextOf(given.name);
  // The handle comes first, because after the allocation other ranks depend on this one's success.
  iris_tensor* handle = nullptr;
  IRIS_ABI_TRY(GiveTensor(storage, view, object.host().rank(), &handle));
  AllocateOptions wanted;
  wanted.bytes = view.bytes();
  wanted.name = storage->name;
  wanted.dtype = view.dtype;
  wanted.shape.assign(view.shape, view.shape + view.n_dims);
  bool fresh = false;
  auto allocation = object.host().teams().Allocate(wanted, team, std::nullopt, &fresh);
  absl::Status status = allocation.status();
  if (status.ok()) {
    storage->allocation = *std::move(allocation);
    if (given.fill != nullptr && !(fresh && SetsZeros(described))) {
      const TensorObject all(storage, view, object.host().rank());
      status = FillTensor(all, described, values.first, given.stream);
    }
    // The allocation has lined the ranks up, and each fills its copy afterwards. Without this
    // barrier, the fill of a slow rank would overwrite what a fast one has written there. Ranks
    // whose fill failed call it, too, because the others wait for them.
    if (given.fill != nullptr && given.stream == nullptr && view.count() > 0 &&
        team.ranks.size() > 1) {
      status.Update(object.host().teams().Barrier(team));
    }
  }
  if (!status.ok()) {
    object.state->Disown(Kind::kTensor, handle);
    return status;
  }
  *out = handle;
  return absl::OkStatus();
}

absl::Status Free(TensorObject& object) {
  Storage& storage = *object.storage;
  if (storage.foreign != nullptr) {
    return Invalid(
        "free: this tensor is memory of another library, which DLPack lent: give up its handles "
        "with iris_tensor_destroy, and its owner is told");
  }
  uint64_t n_lent = 0;
  if (!storage.exports.Free(&n_lent)) {
    return absl::FailedPreconditionError(
        n_lent == 0
            ? absl::StrCat("free: ", storage.Name(), " was freed before")
            : absl::StrCat("free: ", n_lent, " objects of other libraries, which DLPack gave ",
                           storage.Name(), ", still use it: end them first"));
  }
  absl::Status freed = storage.state->host->teams().Free(storage.allocation);
  if (!freed.ok()) storage.exports.TakeBack();
  return freed;
}

}  // namespace
}  // namespace iris::abi

using namespace iris::abi;  // functions in C have no namespace of their own

iris_code iris_tensor_create(iris_context* context, iris_team* team,
                             const iris_tensor_options* options, iris_tensor** out) {
  return WithTeam(context, team, [&](ContextObject& object, const auto& members) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "create a tensor: the place for the handle"));
    IRIS_ABI_TRY(object.host().Usable());
    IRIS_ASSIGN_OR_RETURN(const auto given,
                          ReadStruct(options, kTensorOptionsBytes, "iris_tensor_options"));
    return Create(object, members, given, out);
  });
}

iris_code iris_tensor_get_info(iris_tensor* tensor, iris_tensor_info* out) {
  return OnTensor(tensor, [&](TensorObject& object) {
    const View& view = object.view;
    const Storage& storage = *object.storage;
    iris_tensor_info info = {};
    info.dtype = static_cast<iris_dtype>(view.dtype);
    info.n_dims = view.n_dims;
    std::copy(view.shape, view.shape + kMaxDims, info.shape);
    std::copy(view.strides, view.strides + kMaxDims, info.strides);
    info.n_elements = view.count();
    info.bytes = view.bytes();
    info.address = object.address();
    info.rank = object.rank;
    info.contiguous = view.contiguous() ? 1 : 0;
    info.symmetric = storage.foreign == nullptr ? 1 : 0;
    if (info.symmetric != 0) {
      info.offset_bytes =
          storage.allocation.offset_bytes + static_cast<uint64_t>(view.offset_bytes);
      info.team_id = storage.allocation.team_id;
    }
    info.name = storage.name.empty() ? nullptr : storage.name.c_str();
    return WriteStruct(info, "iris_tensor_info", out);
  });
}

iris_code iris_tensor_free(iris_tensor* tensor) {
  return With<TensorObject>(tensor, [](TensorObject& object) -> absl::Status {
    IRIS_ABI_TRY(object.storage->state->host->Usable());
    return Free(object);
  });
}

iris_code iris_tensor_destroy(iris_tensor* tensor) { return Destroy<TensorObject>(tensor); }

iris_code iris_tensor_at(iris_tensor* tensor, uint32_t rank, iris_tensor** out) {
  return OnTensor(tensor, [&](TensorObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "a peer's view: the place for the handle"));
    const uint32_t n_ranks = object.state->host->n_ranks();
    if (object.storage->foreign != nullptr) {
      return Invalid(
          "a peer's view: this tensor is memory of another library, which DLPack lent, and no "
          "other rank has a copy of it: create a tensor in the heap and copy it there");
    }
    if (rank >= n_ranks) {
      return absl::OutOfRangeError(
          absl::StrCat("a peer's view: there is no rank ", rank, " in a job of ", n_ranks));
    }
    if (!object.state->host->Maps(rank)) {
      return absl::UnimplementedError(
          absl::StrCat("a peer's view: rank ", rank,
                       " is on another node, and its memory is not mapped here: use iris_get() and "
                       "iris_put()"));
    }
    const auto& ranks = object.storage->team.ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
      return Invalid("a peer's view: rank ", rank, " has no copy of ", object.storage->Name(),
                     ", which team ", object.storage->allocation.team_id, " allocated");
    }
    return GiveTensor(object.storage, object.view, rank, out);
  });
}

iris_code iris_tensor_slice(iris_tensor* tensor, uint32_t dim, int64_t start, int64_t stop,
                            int64_t step, iris_tensor** out) {
  return ViewOf(tensor, out, [&](const View& v) { return Slice(v, dim, start, stop, step); });
}

iris_code iris_tensor_select(iris_tensor* tensor, uint32_t dim, int64_t index, iris_tensor** out) {
  return ViewOf(tensor, out, [&](const View& v) { return Select(v, dim, index); });
}

iris_code iris_tensor_reshape(iris_tensor* tensor, uint32_t n_dims, const int64_t* shape,
                              iris_tensor** out) {
  return ViewOf(tensor, out, [&](const View& v) -> absl::StatusOr<View> {
    IRIS_ASSIGN_OR_RETURN(const auto list, ListOf(shape, n_dims, "reshape: the shape"));
    return Reshape(v, list);
  });
}

iris_code iris_tensor_permute(iris_tensor* tensor, uint32_t n_dims, const uint32_t* dims,
                              iris_tensor** out) {
  return ViewOf(tensor, out, [&](const View& v) -> absl::StatusOr<View> {
    IRIS_ASSIGN_OR_RETURN(const auto list, ListOf(dims, n_dims, "permute: the dimensions"));
    return Permute(v, list);
  });
}

iris_code iris_tensor_fill(iris_tensor* tensor, const iris_fill_options* options,
                           iris_stream* stream) {
  return OnTensor(tensor, [&](TensorObject& object) -> absl::Status {
    IRIS_ASSIGN_OR_RETURN(const auto given,
                          ReadStruct(options, kFillOptionsBytes, "iris_fill_options"));
    IRIS_ASSIGN_OR_RETURN(const auto described, DescribeFillOf(object.view, given));
    return FillTensor(object, described, given.first, stream);
  });
}
