// iris::Tensor<T>: memory of the symmetric heap with a shape, strides and perhaps a name, made by
// factories with the semantics of torch's.
//
//   iris::Generator generator(/*seed=*/42);
//   iris::StatusOr<iris::Tensor<float>> x = iris::Tensor<float>::Rand(*context, {2, 3}, generator);
//   iris::StatusOr<iris::Tensor<float>> row = x->Select(0, 1);  // a view: nothing is copied
//   iris::StatusOr<std::vector<float>> values = row->ToHost();
//   iris::StatusOr<iris::Tensor<float>> theirs = x->At(/*rank=*/1);  // the same place on rank 1
//   iris::Status status = x->Free();  // collective
//
// A Tensor is a view; slices, reshapes and peers' copies are views of the same memory. Factories
// and Free are collective over the team: all ranks call them in the same order, with the same shape
// and type. A destructor only releases its view: it does not wait, and memory that is not freed
// stays until the job ends (decision 30). After Free, or after the context's end, every use of any
// view fails.
//
// A factory without a stream returns when the copies of all ranks of the team have their values, so
// that a rank may write into another's copy at once. With a stream it waits for no values, not even
// its own: all ranks give a stream then, and meet in a barrier before one writes into another's
// copy.
//
// Values are computed by the device that has the memory. Random numbers are a function of the
// generator's seed, the number of its call and the element: the same on every rank and every
// backend, and the same as Python's; <iris/random.h> documents the bits.
//
// Errors in the arguments are found before anything starts: kInvalidArgument names them, no memory
// is allocated, and no peer waits. Without a stream, a call waits until it is done. Thread-safe,
// but for moves. Header-only over <iris/c_api.h>. C++17.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "iris/c_api.h"
#include "iris/context.h"
#include "iris/dtype.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace iris {

// A seeded source of random tensors: equal seeds give equal tensors. Each call of a factory takes
// the next call number. Not thread-safe.
class Generator {
 public:
  explicit Generator(uint64_t seed = 67280421310721) : seed_(seed) {}

  uint64_t seed() const { return seed_; }
  uint64_t calls() const { return calls_; }
  uint64_t NextCall() { return calls_++; }

 private:
  uint64_t seed_;
  uint64_t calls_ = 0;
};

struct TensorOptions {
  std::string name{};          // unique in the job, or empty; shown by iris-ctl
  const Team* team = nullptr;  // null: all ranks
  // For the values. Null: the call waits until all ranks' copies have theirs. All ranks give a
  // stream, or none does.
  Stream* stream = nullptr;
};

// T is a type that DTypeOf knows. A tensor is move-only; a moved-from or default-constructed one is
// empty: every call fails.
template <typename T>
class Tensor {
  static_assert(DTypeOf<T>() != DType::kNone, "a tensor's elements are numbers or bool");
  static constexpr bool kWhole = std::is_integral_v<T>;

 public:
  using Shape = std::vector<int64_t>;

  Tensor() = default;

  // Factories are collective over the team. kInvalidArgument if the shape has a negative size, more
  // than 8 dimensions, or more bytes than can be counted. Other errors are those of
  // Context::Allocate.

  // Leaves the memory as it is: a fresh heap is zero, and reused memory holds its old bytes.
  static StatusOr<Tensor> Empty(const Context& context, const Shape& shape,
                                const TensorOptions& options = {}) {
    return Create(context, shape, nullptr, options);
  }
  static StatusOr<Tensor> Zeros(const Context& context, const Shape& shape,
                                const TensorOptions& options = {}) {
    return Create(context, shape, ValueOf(0, 0), options);
  }
  static StatusOr<Tensor> Ones(const Context& context, const Shape& shape,
                               const TensorOptions& options = {}) {
    return Create(context, shape, ValueOf(1, 1), options);
  }
  static StatusOr<Tensor> Full(const Context& context, const Shape& shape, T value,
                               const TensorOptions& options = {}) {
    return Create(context, shape, ValueOf(value), options);
  }

  // Gives start, start + step, ... before end, which is excluded. kInvalidArgument if the step is 0
  // or leads away from the end; bool has no ranges.
  template <typename Number>
  static StatusOr<Tensor> Arange(const Context& context, Number start, Number end,
                                 Number step = Number{1}, const TensorOptions& options = {}) {
    static_assert(std::is_same_v<Number, int64_t> || std::is_same_v<Number, int> ||
                      (std::is_arithmetic_v<Number> && !kWhole) || std::is_same_v<Number, T>,
                  "the ends of a range are of the tensor's type, or int");
    int64_t count = 0;
    IRIS_RETURN_IF_ERROR(CountOf(start, end, step, &count));
    iris_fill_options fill = Options(IRIS_FILL_ARANGE);
    SetNumbers(start, &fill.start, &fill.whole_start);
    SetNumbers(step, &fill.step, &fill.whole_step);
    return Create(context, {count}, fill, options);
  }

  // Gives `steps` numbers at equal distances from start to end, both included; one step gives the
  // start.
  static StatusOr<Tensor> Linspace(const Context& context, double start, double end, int64_t steps,
                                   const TensorOptions& options = {}) {
    iris_fill_options fill = Options(IRIS_FILL_LINSPACE);
    fill.start = kWhole ? std::trunc(start) : start;
    fill.end = kWhole ? std::trunc(end) : end;
    fill.steps = steps < 0 ? 0 : static_cast<uint64_t>(steps);
    return Create(context, {steps}, fill, options);
  }

  // Draws from the uniform distribution over [0, 1).
  static StatusOr<Tensor> Rand(const Context& context, const Shape& shape, Generator& generator,
                               const TensorOptions& options = {}) {
    return Create(context, shape, Random(IRIS_FILL_RAND, generator), options);
  }
  // Draws from the uniform distribution over [low, high); every element is low if the two are
  // equal.
  static StatusOr<Tensor> Uniform(const Context& context, const Shape& shape, double low,
                                  double high, Generator& generator,
                                  const TensorOptions& options = {}) {
    iris_fill_options fill = Random(IRIS_FILL_UNIFORM, generator);
    fill.start = low;
    fill.end = high;
    return Create(context, shape, fill, options);
  }
  // Draws from the normal distribution with mean 0 and variance 1.
  static StatusOr<Tensor> Randn(const Context& context, const Shape& shape, Generator& generator,
                                const TensorOptions& options = {}) {
    return Create(context, shape, Random(IRIS_FILL_RANDN, generator), options);
  }
  // Draws integers from [low, high).
  static StatusOr<Tensor> Randint(const Context& context, const Shape& shape, int64_t low,
                                  int64_t high, Generator& generator,
                                  const TensorOptions& options = {}) {
    if (low >= high) {
      return Status(StatusCode::kInvalidArgument, "randint: there is no number from " +
                                                      std::to_string(low) + " that is below " +
                                                      std::to_string(high));
    }
    iris_fill_options fill = Random(IRIS_FILL_RANDINT, generator);
    fill.whole_start = low;
    fill.whole_end = high - 1;
    return Create(context, shape, fill, options);
  }

  // Factories with the shape of another tensor.
  template <typename U>
  static StatusOr<Tensor> EmptyLike(const Context& context, const Tensor<U>& other,
                                    const TensorOptions& options = {}) {
    return Empty(context, other.shape(), options);
  }
  template <typename U>
  static StatusOr<Tensor> ZerosLike(const Context& context, const Tensor<U>& other,
                                    const TensorOptions& options = {}) {
    return Zeros(context, other.shape(), options);
  }
  template <typename U>
  static StatusOr<Tensor> OnesLike(const Context& context, const Tensor<U>& other,
                                   const TensorOptions& options = {}) {
    return Ones(context, other.shape(), options);
  }
  template <typename U>
  static StatusOr<Tensor> FullLike(const Context& context, const Tensor<U>& other, T value,
                                   const TensorOptions& options = {}) {
    return Full(context, other.shape(), value, options);
  }

  // Imports a DLManagedTensor (DLPack 0.x) of another library without a copy. Its deleter is called
  // when the last view of the tensor ends. At and Free refuse the tensor, which is not in the heap.
  // kInvalidArgument for another device or type; the caller then still owns `managed`.
  static StatusOr<Tensor> FromDlpack(const Context& context, void* managed) {
    iris_tensor* handle = nullptr;
    IRIS_RETURN_IF_ERROR(
        impl::FromC(iris_tensor_from_dlpack(context.get(), managed, kDType, &handle)));
    return Adopt(handle);
  }

  // These are the tensor's properties when it was made; they stay valid after Free.

  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }  // in elements
  uint64_t size() const { return info_.n_elements; }
  uint64_t bytes() const { return info_.bytes; }
  uint64_t offset_bytes() const { return info_.offset_bytes; }  // the same on every rank
  uint32_t rank() const { return info_.rank; }                  // that has this copy
  bool contiguous() const { return info_.contiguous != 0; }
  bool symmetric() const { return info_.symmetric != 0; }  // false: another library's
  // The address of the first element in this process, for kernels and copies.
  T* data() const { return static_cast<T*>(info_.address); }
  // The handle for the C API; null if this is empty.
  iris_tensor* get() const { return handle_.get(); }

  // Views are not collective. Negative indices count from the end.

  // Makes a view of another rank's copy. kOutOfRange if there is no such rank. kInvalidArgument if
  // the rank has no copy.
  StatusOr<Tensor> At(uint32_t of_rank) const {
    return View([&](iris_tensor** out) { return iris_tensor_at(get(), of_rank, out); });
  }
  // Selects the elements start, start + step, ... before stop of one dimension.
  StatusOr<Tensor> Slice(uint32_t dim, int64_t start, int64_t stop, int64_t step = 1) const {
    return View(
        [&](iris_tensor** out) { return iris_tensor_slice(get(), dim, start, stop, step, out); });
  }
  // Selects one element of a dimension, and drops that dimension.
  StatusOr<Tensor> Select(uint32_t dim, int64_t index) const {
    return View([&](iris_tensor** out) { return iris_tensor_select(get(), dim, index, out); });
  }
  // Views the tensor in another shape of equally many elements; one size may be -1.
  // kInvalidArgument if the tensor is not contiguous.
  StatusOr<Tensor> Reshape(const Shape& shape) const {
    return View([&](iris_tensor** out) {
      return iris_tensor_reshape(get(), static_cast<uint32_t>(shape.size()), shape.data(), out);
    });
  }
  // Puts the dimensions into another order.
  StatusOr<Tensor> Permute(const std::vector<uint32_t>& dims) const {
    return View([&](iris_tensor** out) {
      return iris_tensor_permute(get(), static_cast<uint32_t>(dims.size()), dims.data(), out);
    });
  }

  Status Fill(T value, Stream* stream = nullptr) const {
    const iris_fill_options fill = ValueOf(value);
    return impl::FromC(iris_tensor_fill(get(), &fill, HandleOf(stream)));
  }
  // Copy from and to the host, in row-major order, and wait. kInvalidArgument if `values` has
  // another number of elements.
  Status CopyFrom(const T* values, uint64_t count, Stream* stream = nullptr) const {
    return impl::FromC(
        iris_tensor_from_host(get(), values, BytesOf(count), kDType, HandleOf(stream)));
  }
  Status CopyFrom(const std::vector<T>& values, Stream* stream = nullptr) const {
    if constexpr (std::is_same_v<T, bool>) {  // std::vector<bool> has no array
      const std::unique_ptr<T[]> copy(new T[values.size() + 1]);
      std::copy(values.begin(), values.end(), copy.get());
      return CopyFrom(copy.get(), values.size(), stream);
    } else {
      return CopyFrom(values.data(), values.size(), stream);
    }
  }
  Status CopyTo(T* values, uint64_t count, Stream* stream = nullptr) const {
    return impl::FromC(
        iris_tensor_to_host(get(), values, BytesOf(count), kDType, HandleOf(stream)));
  }
  StatusOr<std::vector<T>> ToHost(Stream* stream = nullptr) const {
    const std::unique_ptr<T[]> values(new T[size() + 1]);
    IRIS_RETURN_IF_ERROR(CopyTo(values.get(), size(), stream));
    return std::vector<T>(values.get(), values.get() + size());
  }
  // Copies from a tensor of the same shape, in stream order. Either tensor may be a peer's.
  Status CopyFrom(const Tensor& other, Stream* stream = nullptr) const {
    return impl::FromC(iris_tensor_copy(get(), other.get(), HandleOf(stream)));
  }

  // Exports a DLManagedTensor (DLPack 0.x), without a copy. The receiver calls its deleter, on any
  // thread; the memory stays until then.
  StatusOr<void*> ToDlpack() const {
    void* managed = nullptr;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_tensor_to_dlpack(get(), &managed)));
    return managed;
  }

  // Frees the memory, given any view of it. Collective over the team that made the tensor.
  // Synchronize streams first. kFailedPrecondition if the memory was freed before, or if a receiver
  // of ToDlpack still uses it.
  Status Free() const { return impl::FromC(iris_tensor_free(get())); }

 private:
  static constexpr iris_dtype kDType = static_cast<iris_dtype>(DTypeOf<T>());

  static iris_stream* HandleOf(Stream* stream) {
    return stream == nullptr ? nullptr : stream->get();
  }
  // Returns the size in bytes, or if that overflows, a size that every tensor refuses.
  static uint64_t BytesOf(uint64_t count) {
    return count > ~uint64_t{0} / sizeof(T) ? ~uint64_t{0} : count * sizeof(T);
  }

  static iris_fill_options Options(iris_fill_kind kind) {
    auto fill = impl::Sized<iris_fill_options>();
    fill.kind = kind;
    return fill;
  }
  static iris_fill_options Random(iris_fill_kind kind, Generator& generator) {
    iris_fill_options fill = Options(kind);
    fill.seed = generator.seed();
    fill.call = generator.NextCall();
    return fill;
  }
  // Stores a number of type T in the fields that the fill of this type reads.
  template <typename Number>
  static void SetNumbers(Number value, double* number, int64_t* whole) {
    if constexpr (!kWhole) {
      if constexpr (std::is_arithmetic_v<Number>) {
        *number = static_cast<double>(value);
      } else {
        *number = static_cast<double>(static_cast<float>(value));
      }
    } else if constexpr (std::is_same_v<std::remove_cv_t<T>, char> && std::is_same_v<Number, T>) {
      *whole = static_cast<unsigned char>(value);
    } else {
      *whole = static_cast<int64_t>(value);
    }
  }
  static iris_fill_options ValueOf(double number, int64_t whole) {
    iris_fill_options fill = Options(IRIS_FILL_VALUE);
    fill.start = number;
    fill.whole_start = whole;
    return fill;
  }
  static iris_fill_options ValueOf(T value) {
    iris_fill_options fill = Options(IRIS_FILL_VALUE);
    SetNumbers(value, &fill.start, &fill.whole_start);
    return fill;
  }

  // Returns the number of elements of a range.
  template <typename Number>
  static Status CountOf(Number start, Number end, Number step, int64_t* out) {
    const auto wrong = [](const char* what) { return Status(StatusCode::kInvalidArgument, what); };
    if (step == Number{0}) return wrong("arange: the step must not be 0");
    const bool down = step < Number{0};
    if (down ? start < end : end < start) {
      return wrong("arange: the step leads away from the end");
    }
    if constexpr (std::is_integral_v<Number>) {
      if (start == end) {
        *out = 0;
        return Status();
      }
      // Unsigned arithmetic wraps to the right distance.
      const uint64_t from = static_cast<uint64_t>(start), to = static_cast<uint64_t>(end);
      const uint64_t by = static_cast<uint64_t>(step);
      const uint64_t count = down ? (from - to - 1) / (0 - by) + 1 : (to - from - 1) / by + 1;
      if (count > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return wrong("arange: so many numbers cannot be counted");
      }
      *out = static_cast<int64_t>(count);
    } else {
      const double count = std::ceil((static_cast<double>(end) - static_cast<double>(start)) /
                                     static_cast<double>(step));
      if (!(count < 9.2e18)) return wrong("arange: the ends must be finite, and can be counted");
      *out = static_cast<int64_t>(count);
    }
    return Status();
  }

  static StatusOr<Tensor> Create(const Context& context, const Shape& shape,
                                 const iris_fill_options& fill, const TensorOptions& options) {
    return Create(context, shape, &fill, options);
  }
  static StatusOr<Tensor> Create(const Context& context, const Shape& shape,
                                 const iris_fill_options* fill, const TensorOptions& from) {
    auto options = impl::Sized<iris_tensor_options>();
    options.dtype = kDType;
    options.n_dims = static_cast<uint32_t>(shape.size());
    options.shape = shape.data();
    options.name = from.name.c_str();
    options.fill = fill;
    options.stream = HandleOf(from.stream);
    iris_tensor* handle = nullptr;
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_tensor_create(
        context.get(), from.team == nullptr ? nullptr : from.team->handle, &options, &handle)));
    return Adopt(handle);
  }

  template <typename Make>
  StatusOr<Tensor> View(Make make) const {
    iris_tensor* handle = nullptr;
    IRIS_RETURN_IF_ERROR(impl::FromC(make(&handle)));
    return Adopt(handle);
  }
  static StatusOr<Tensor> Adopt(iris_tensor* handle) {
    Tensor tensor;
    tensor.handle_ = impl::Handle<iris_tensor, iris_tensor_destroy>(handle);
    tensor.info_ = impl::Sized<iris_tensor_info>();
    IRIS_RETURN_IF_ERROR(impl::FromC(iris_tensor_get_info(handle, &tensor.info_)));
    tensor.shape_.assign(tensor.info_.shape, tensor.info_.shape + tensor.info_.n_dims);
    tensor.strides_.assign(tensor.info_.strides, tensor.info_.strides + tensor.info_.n_dims);
    return tensor;
  }

  impl::Handle<iris_tensor, iris_tensor_destroy> handle_;
  iris_tensor_info info_ = {};
  Shape shape_, strides_;
};

}  // namespace iris
