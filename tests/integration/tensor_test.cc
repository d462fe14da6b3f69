// iris::Tensor on ranks of a real irisd: values, views, copies, DLPack, and what is refused before
// anything starts.
#include "iris/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "client/abi/dlpack.h"
#include "iris/context.h"
#include "iris/random.h"
#include "iris/stream.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/require.h"

namespace iris {
namespace {

using abi::DLManagedTensor;
using testing::Daemon;
using testing::RankProcesses;
using testing::Require;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;

ContextOptions Small() {
  ContextOptions options;
  options.heap_bytes = 4 << 20;
  options.max_heap_bytes = 16 << 20;
  return options;
}

// Whether the tensor has these values. Collective with its Free.
template <typename T>
bool Has(const StatusOr<Tensor<T>>& tensor, const std::vector<T>& wanted) {
  if (!tensor.ok()) {
    std::cout << tensor.status().ToString() << std::endl;
    return false;
  }
  const auto values = tensor->ToHost();
  if (!values.ok()) std::cout << values.status().ToString() << std::endl;
  const bool same = values.ok() && *values == wanted;
  if (values.ok() && !same) {
    for (const T value : *values) std::cout << +value << " ";
    std::cout << std::endl;
  }
  return same && tensor->Free().ok();
}

template <typename T>
int CheckRanges(const Context& c) {
  REQUIRE(Has(Tensor<T>::Zeros(c, {2, 2}), {0, 0, 0, 0}));
  REQUIRE(Has(Tensor<T>::Ones(c, {3}), {1, 1, 1}));
  REQUIRE(Has(Tensor<T>::Full(c, {}, T(7)), {7}));
  REQUIRE(Has(Tensor<T>::Full(c, {2, 0, 3}, T(7)), {}));
  // As torch: ends, steps, a single step, none.
  REQUIRE(Has(Tensor<T>::Arange(c, 0, 5), {0, 1, 2, 3, 4}));
  REQUIRE(Has(Tensor<T>::Arange(c, 1, 10, 3), {1, 4, 7}));
  REQUIRE(Has(Tensor<T>::Arange(c, 10, 0, -3), {10, 7, 4, 1}));
  REQUIRE(Has(Tensor<T>::Arange(c, 5, 5), {}));
  REQUIRE(Has(Tensor<T>::Linspace(c, 3, 3, 2), {3, 3}));
  REQUIRE(Has(Tensor<T>::Linspace(c, 0, 8, 5), {0, 2, 4, 6, 8}));
  REQUIRE(Has(Tensor<T>::Linspace(c, 8, 0, 3), {8, 4, 0}));
  REQUIRE(Has(Tensor<T>::Linspace(c, 5, 9, 1), {5}));
  REQUIRE(Has(Tensor<T>::Linspace(c, 5, 9, 0), {}));
  return 0;
}

int Factories(const std::vector<std::string>&) {
  Context c = Require(Context::Create(Small()));
  REQUIRE(CheckRanges<float>(c) == 0);
  REQUIRE(CheckRanges<double>(c) == 0);
  REQUIRE(CheckRanges<int8_t>(c) == 0);
  REQUIRE(CheckRanges<uint16_t>(c) == 0);
  REQUIRE(CheckRanges<int64_t>(c) == 0);
  REQUIRE(CheckRanges<uint64_t>(c) == 0);
  REQUIRE(Has(Tensor<bool>::Full(c, {2}, true), {true, true}));
  REQUIRE(Has(Tensor<float>::Arange(c, 0.0, 1.0, 0.3), {0.0f, 0.3f, 0.6f, 0.9f}));
  REQUIRE(Has(Tensor<int64_t>::Full(c, {1}, std::numeric_limits<int64_t>::min()),
              {std::numeric_limits<int64_t>::min()}));
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  REQUIRE(Has(Tensor<uint64_t>::Arange(c, most - 3, most, uint64_t{2}), {most - 3, most - 1}));

  // Random numbers: as they are documented, the same on all ranks.
  Generator generator(42);
  auto x = Require(Tensor<float>::Rand(c, {7}, generator));
  auto values = Require(x.ToHost());
  const RandomDraw draw = {42, 0};
  for (uint64_t i = 0; i < 7; ++i) REQUIRE(values[i] == RandomUnit(draw.Word(i)));
  auto again = Require(Tensor<float>::Rand(c, {7}, generator));
  REQUIRE(*again.ToHost() != values && generator.calls() == 2);
  auto normal = Require(Tensor<double>::Randn(c, {3, 5}, generator));
  const RandomDraw third = {42, 2};
  REQUIRE((*normal.ToHost())[14] == InverseNormal(NormalChance(third.Long(14))));
  auto dice = Require(Tensor<int8_t>::Randint(c, {500}, 1, 7, generator));
  std::vector<int> seen(8);
  const auto thrown = Require(dice.ToHost());
  for (const int8_t value : thrown) {
    REQUIRE(value >= 1 && value < 7);
    ++seen[static_cast<size_t>(value)];
  }
  for (int value = 1; value < 7; ++value) REQUIRE(seen[static_cast<size_t>(value)] > 40);
  auto between = Require(Tensor<float>::Uniform(c, {100}, -2.5, -2.0, generator));
  const auto inside = Require(between.ToHost());
  for (const float value : inside) REQUIRE(value >= -2.5f && value < -2.0f);

  // Like others, with a name, on a stream of the program's.
  auto like = Require(Tensor<int32_t>::FullLike(c, normal, 9));
  REQUIRE(like.shape() == normal.shape() && like.strides() == Tensor<int>::Shape({5, 1}));
  auto stream = Require(Stream::Create(c));
  TensorOptions options;
  options.name = "weights";
  options.stream = &stream;
  auto named = Require(Tensor<double>::Ones(c, {1000}, options));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE((*named.ToHost(&stream))[999] == 1);
  REQUIRE(Tensor<double>::Ones(c, {1000}, options).status().code() == StatusCode::kAlreadyExists);
  // A team of one allocates alone.
  auto alone = Require(c.CreateTeam({0}));
  if (alone.member()) {
    options = {};
    options.team = &alone;
    auto own = Require(Tensor<float>::Zeros(c, {4}, options));
    REQUIRE_FAILS(own.At(1), kInvalid, "rank 1 has no copy");
    REQUIRE_OK(own.Free());
  }
  REQUIRE_OK(c.Barrier());
  return 0;
}

// A rank that writes into another's copy right after a factory must not be overwritten by a fill
// that ends later there. One element is written by each rank, the last of the next rank's copy,
// while a slow rank would still fill it.
int WritesAfterFactories(const std::vector<std::string>&) {
  Context c = Require(Context::Create(Small()));
  constexpr int64_t count = 1 << 17;
  const uint32_t next = (c.rank() + 1) % c.n_ranks();
  const uint32_t before = (c.rank() + c.n_ranks() - 1) % c.n_ranks();
  for (int round = 0; round < 100; ++round) {
    auto x = Require(round % 2 == 0 ? Tensor<float>::Zeros(c, {count})
                                    : Tensor<float>::Ones(c, {count}));
    auto theirs = Require(x.At(next));
    theirs.data()[count - 1] = 7 + static_cast<float>(c.rank());
    REQUIRE_OK(c.Barrier());
    REQUIRE(x.data()[count - 1] == 7 + static_cast<float>(before));
    REQUIRE(x.data()[0] == static_cast<float>(round % 2));
    REQUIRE(x.data()[count - 2] == static_cast<float>(round % 2));  // reused memory is filled, too
    REQUIRE_OK(x.Free());
  }
  // The library knows which memory nobody has had: it is zero.
  auto options = impl::Sized<iris_allocate_options>();
  options.bytes = count * sizeof(float);
  auto used = impl::Sized<iris_allocation>(), unused = used;
  REQUIRE_OK(impl::FromC(iris_allocate(c.get(), nullptr, &options, &used)));
  REQUIRE_OK(impl::FromC(iris_allocate(c.get(), nullptr, &options, &unused)));
  REQUIRE(used.fresh == 0 && unused.fresh == 1);
  const std::vector<float> zeros(count);
  REQUIRE(std::memcmp(unused.address, zeros.data(), options.bytes) == 0);
  REQUIRE_OK(impl::FromC(iris_free(c.get(), &unused)));
  REQUIRE_OK(impl::FromC(iris_allocate(c.get(), nullptr, &options, &unused)));
  REQUIRE(unused.fresh == 0);
  // A zero of the other sign is filled.
  auto negative = Require(Tensor<float>::Full(c, {4}, -0.0f));
  REQUIRE(std::signbit(negative.data()[3]));
  REQUIRE_OK(c.Barrier());
  return 0;
}

int Views(const std::vector<std::string>&) {
  Context c = Require(Context::Create(Small()));
  const int32_t me = static_cast<int32_t>(c.rank());
  auto x = Require(Tensor<int32_t>::Arange(c, 0, 24));
  auto cube = Require(x.Reshape({2, -1, 4}));
  REQUIRE(cube.shape() == Tensor<int>::Shape({2, 3, 4}) && cube.data() == x.data());
  auto column = Require(cube.Select(2, -1));
  REQUIRE(!column.contiguous() && column.strides() == Tensor<int>::Shape({12, 4}));
  REQUIRE(*column.ToHost() == std::vector<int32_t>({3, 7, 11, 15, 19, 23}));
  auto part = Require(cube.Slice(1, -2, 100)->Slice(2, 1, 4, 2));
  REQUIRE(*part.ToHost() == std::vector<int32_t>({5, 7, 9, 11, 17, 19, 21, 23}));
  auto turned = Require(cube.Permute({2, 0, 1}));
  REQUIRE((*turned.ToHost())[1] == 4 && turned.shape() == Tensor<int>::Shape({4, 2, 3}));
  // Values go to the view and nowhere else.
  REQUIRE_OK(part.Fill(-1));
  REQUIRE_OK(column.CopyFrom({-10, -20, -30, -40, -50, -60}));
  REQUIRE(*x.ToHost() == std::vector<int32_t>({0,  1,  2,  -10, 4,  -1, 6,  -20, 8,  -1, 10, -30,
                                               12, 13, 14, -40, 16, -1, 18, -50, 20, -1, 22, -60}));
  // Elements of a random sequence lie in a view as in a row.
  auto grid = Require(Tensor<float>::Zeros(c, {6, 10}));
  auto inner = Require(grid.Slice(1, 3, 8));
  iris_fill_options fill = {};
  fill.size = sizeof(fill);
  fill.kind = IRIS_FILL_RAND;
  fill.seed = 5;
  REQUIRE(iris_tensor_fill(inner.get(), &fill, nullptr) == IRIS_OK);
  const RandomDraw draw = {5, 0};
  const auto values = *inner.ToHost();
  for (uint64_t i = 0; i < 30; ++i) REQUIRE(values[i] == RandomUnit(draw.Word(i)));
  REQUIRE((*grid.ToHost())[2] == 0 && (*grid.ToHost())[8] == 0);

  // Peers.
  auto mine = Require(Tensor<int32_t>::Full(c, {3, 4}, me));
  REQUIRE_OK(c.Barrier());
  const uint32_t peer = (c.rank() + 1) % c.n_ranks();
  auto theirs = Require(mine.At(peer));
  REQUIRE(theirs.rank() == peer && theirs.offset_bytes() == mine.offset_bytes());
  REQUIRE((*theirs.ToHost())[11] == static_cast<int32_t>(peer));
  auto row = Require(theirs.Select(0, 1));
  REQUIRE_OK(c.Barrier());
  REQUIRE_OK(row.Fill(100 + me));
  REQUIRE_OK(c.Barrier());
  const int32_t before = static_cast<int32_t>((c.rank() + c.n_ranks() - 1) % c.n_ranks());
  REQUIRE((*mine.ToHost())[4] == 100 + before && (*mine.ToHost())[3] == me);
  auto copy = Require(Tensor<int32_t>::EmptyLike(c, mine));
  REQUIRE_OK(c.Barrier());
  REQUIRE_OK(copy.CopyFrom(theirs));
  REQUIRE(*copy.ToHost() == *theirs.ToHost());
  REQUIRE_OK(c.Barrier());

  // One free ends all views.
  REQUIRE_OK(column.Free());
  REQUIRE_FAILS(x.ToHost(), StatusCode::kFailedPrecondition, "after it was freed");
  REQUIRE_FAILS(cube.Slice(0, 0, 1), StatusCode::kFailedPrecondition, "after it was freed");
  REQUIRE_FAILS(x.Fill(1), StatusCode::kFailedPrecondition, "after it was freed");
  REQUIRE_FAILS(x.Free(), StatusCode::kFailedPrecondition, "freed before");
  // What is given up without a free leaves the others as they are.
  { auto dropped = Tensor<double>::Zeros(c, {5}); }
  REQUIRE(Has(Tensor<double>::Ones(c, {2}), {1, 1}));
  REQUIRE_OK(c.Leave());
  REQUIRE_FAILS(mine.ToHost(), StatusCode::kFailedPrecondition, "after the end of its context");
  REQUIRE_FAILS(mine.Free(), StatusCode::kFailedPrecondition);
  return 0;
}

// Nothing of this starts anything: the last allocation is where the first would have been.
int Mistakes(const std::vector<std::string>&) {
  Context c = Require(Context::Create(Small()));
  using F = Tensor<float>;
  Generator g(1);
  const auto first = Require(c.Allocate({64}));
  REQUIRE_OK(c.Free(first));
  REQUIRE_FAILS(F::Zeros(c, {2, -1}), kInvalid, "(2, -1)", "negative");
  REQUIRE_FAILS(F::Zeros(c, {int64_t{1} << 61}), kInvalid, "overflows");
  REQUIRE_FAILS(F::Zeros(c, {int64_t{1} << 40, 0, int64_t{1} << 40}), kInvalid, "overflows");
  REQUIRE_FAILS(F::Zeros(c, {1, 1, 1, 1, 1, 1, 1, 1, 1}), kInvalid, "at most 8 dimensions");
  REQUIRE_FAILS(F::Arange(c, 0, 5, 0), kInvalid, "step must not be 0");
  REQUIRE_FAILS(F::Arange(c, 3, 0), kInvalid, "leads away");
  REQUIRE_FAILS(F::Arange(c, 0.0, kInfinity), kInvalid, "finite");
  REQUIRE_FAILS(F::Arange(c, std::nan(""), 1.0), kInvalid, "finite");
  REQUIRE_FAILS(Tensor<int8_t>::Arange(c, 0, 300), kInvalid, "i8", "-128 to 127");
  REQUIRE_FAILS(Tensor<bool>::Arange(c, 0, 2), kInvalid, "bool");
  REQUIRE_FAILS(F::Linspace(c, 0, 1, -1), kInvalid, "negative");
  REQUIRE_FAILS(F::Linspace(c, 0, kInfinity, 3), kInvalid, "finite");
  REQUIRE_FAILS(F::Linspace(c, -1.7e308, 1.7e308, 3), kInvalid, "more than a double holds");
  REQUIRE_FAILS(Tensor<int8_t>::Linspace(c, 0, 1000, 3), kInvalid, "i8");
  REQUIRE_FAILS(Tensor<int32_t>::Rand(c, {3}, g), kInvalid, "i32", "randint");
  REQUIRE_FAILS(Tensor<bool>::Randn(c, {3}, g), kInvalid, "bool");
  REQUIRE_FAILS(F::Uniform(c, {3}, 2, 1, g), kInvalid, "no range");
  REQUIRE_FAILS(F::Uniform(c, {3}, 0, kInfinity, g), kInvalid, "finite");
  REQUIRE_FAILS(F::Randint(c, {3}, 5, 5, g), kInvalid, "below 5");
  REQUIRE_FAILS(Tensor<uint8_t>::Randint(c, {3}, 0, 300, g), kInvalid, "u8", "255");
  REQUIRE_FAILS(Tensor<uint8_t>::Randint(c, {3}, -1, 3, g), kInvalid, "u8");
  REQUIRE_FAILS(F().Free(), kInvalid, "null");
  REQUIRE_FAILS(F().ToHost(), kInvalid);
  if (c.rank() == 0) {
    ContextOptions apart = Small();
    apart.job = "another";
    apart.rank = 0;
    apart.n_ranks = 1;
    auto other = Require(Context::Create(apart));
    auto foreign = Require(Stream::Create(other));
    TensorOptions options;
    options.stream = &foreign;
    REQUIRE_FAILS(F::Zeros(c, {3}, options), kInvalid, "another context");
    auto there = Require(F::Zeros(other, {3}));
    auto own = F::Zeros(other, {3});
    auto here = Require(Stream::Create(c));
    REQUIRE_FAILS(there.CopyFrom(*own, &here), kInvalid, "different contexts");
    REQUIRE_OK(there.CopyFrom(*own));
  }
  const auto last = Require(c.Allocate({64}));
  REQUIRE(last.offset_bytes == first.offset_bytes);

  auto x = Require(F::Zeros(c, {2, 3}));
  REQUIRE_FAILS(x.At(9), StatusCode::kOutOfRange, "no rank 9");
  REQUIRE_FAILS(x.Slice(2, 0, 1), StatusCode::kOutOfRange, "no dimension 2", "(2, 3)");
  REQUIRE_FAILS(x.Slice(0, 0, 1, 0), kInvalid, "positive step");
  REQUIRE_FAILS(x.Select(0, 2), StatusCode::kOutOfRange, "2 is outside");
  REQUIRE_FAILS(x.Reshape({4, 2}), kInvalid, "(2, 3)", "6 elements", "(4, 2)");
  REQUIRE_FAILS(x.Reshape({-1, -1}), kInvalid, "negative");
  REQUIRE_FAILS(x.Reshape({-1, 4}), kInvalid, "(-1, 4)");
  REQUIRE_FAILS(x.Permute({0, 0}), kInvalid, "no order");
  REQUIRE_FAILS(x.Permute({1, 0})->Reshape({6}), kInvalid, "not contiguous");
  REQUIRE_FAILS(x.CopyFrom(std::vector<float>(5)), kInvalid, "24 bytes", "20");
  REQUIRE_FAILS(x.CopyFrom(nullptr, 6), kInvalid, "null");
  REQUIRE_FAILS(x.CopyFrom(x), kInvalid, "overlaps");
  REQUIRE_FAILS(x.CopyFrom(*x.Select(0, 1)), kInvalid, "(3,)", "(2, 3)");
  iris_fill_options fill = {};
  fill.size = sizeof(fill);
  fill.dtype = IRIS_I32;
  REQUIRE(iris_tensor_fill(x.get(), &fill, nullptr) == IRIS_INVALID_ARGUMENT);
  fill.dtype = IRIS_F32;
  fill.count = 5;
  REQUIRE(iris_tensor_fill(x.get(), &fill, nullptr) == IRIS_INVALID_ARGUMENT);
  // Raw memory: what is not all in the heap, not aligned, or of a shape that is none.
  auto stream = Require(Stream::Create(c));
  const auto fill_at = [&](void* at, uint64_t count) {
    fill.count = count;
    return impl::FromC(iris_fill(c.get(), at, &fill, stream.get()));
  };
  char* const at = reinterpret_cast<char*>(x.data());
  REQUIRE_FAILS(fill_at(at + 2, 1), kInvalid, "not aligned");
  REQUIRE_FAILS(fill_at(at, uint64_t{1} << 40), kInvalid, "not all in one heap");
  REQUIRE_FAILS(fill_at(at, uint64_t{1} << 62), kInvalid, "overflow");
  REQUIRE_FAILS(fill_at(nullptr, 1), kInvalid, "null");
  const int64_t shape[] = {2, 3}, strides[] = {int64_t{1} << 40, 1};
  fill.n_dims = 2;
  fill.shape = shape;
  fill.strides = strides;
  REQUIRE_FAILS(fill_at(at, 6), kInvalid, "not all in one heap");
  REQUIRE_FAILS(fill_at(at, 5), kInvalid, "6 elements");
  REQUIRE_OK(c.Barrier());
  return 0;
}

int Dlpack(const std::vector<std::string>&) {
  auto context = Require(Context::Create(Small()));
  auto x = Require(Tensor<float>::Arange(context, 0, 12));
  auto view = Require(x.Reshape({3, 4})->Slice(1, 1, 3));
  auto lent = view.ToDlpack();
  REQUIRE_OK(lent);
  auto* const managed = static_cast<DLManagedTensor*>(*lent);
  const abi::DLTensor& t = managed->dl_tensor;
  REQUIRE(t.data == view.data() && t.device.device_type == 1 && t.ndim == 2);
  REQUIRE(t.dtype.code == 2 && t.dtype.bits == 32 && t.dtype.lanes == 1);
  REQUIRE(t.shape[0] == 3 && t.shape[1] == 2 && t.strides[0] == 4 && t.strides[1] == 1);
  // While it is lent, it is not freed: all ranks refuse, before anything starts.
  REQUIRE_FAILS(x.Free(), StatusCode::kFailedPrecondition, "DLPack", "end them first");
  // Back in, as memory that no peer has.
  REQUIRE_FAILS(Tensor<int32_t>::FromDlpack(context, managed), kInvalid, "f32");
  {
    auto borrowed = Tensor<float>::FromDlpack(context, managed);
    REQUIRE_OK(borrowed);
    REQUIRE(!borrowed->symmetric() && *borrowed->ToHost() == *view.ToHost());
    REQUIRE_FAILS(borrowed->At(0), kInvalid, "create a tensor in the heap");
    REQUIRE_FAILS(borrowed->Free(), kInvalid, "iris_tensor_destroy");
    auto part = Require(borrowed->Select(0, 2));
    borrowed = Tensor<float>();
    REQUIRE_OK(part.Fill(5));
    REQUIRE((*x.ToHost())[9] == 5);
    REQUIRE_FAILS(x.Free(), StatusCode::kFailedPrecondition);
  }
  // Its deleter was called with the last view.
  REQUIRE_OK(x.Free());

  // What others lend: checked, and given back once.
  static int n_deleted;
  static float memory[6] = {0, 1, 2, 3, 4, 5};
  int64_t shape[] = {2, 3}, strides[] = {1, 2};
  DLManagedTensor theirs = {};
  theirs.dl_tensor.data = memory;
  theirs.dl_tensor.device = {1, 0};
  theirs.dl_tensor.ndim = 2;
  theirs.dl_tensor.dtype = {2, 32, 1};
  theirs.dl_tensor.shape = shape;
  theirs.dl_tensor.strides = strides;
  theirs.deleter = [](DLManagedTensor*) { ++n_deleted; };
  const auto refused = [&](auto change) {
    DLManagedTensor wrong = theirs;
    change(&wrong.dl_tensor);
    return Tensor<float>::FromDlpack(context, &wrong).status();
  };
  REQUIRE_FAILS(refused([](abi::DLTensor* d) { d->device.device_type = 2; }), kInvalid, "device 0");
  REQUIRE_FAILS(refused([](abi::DLTensor* d) { d->dtype.lanes = 4; }), kInvalid, "lanes");
  REQUIRE_FAILS(refused([](abi::DLTensor* d) { d->ndim = 9; }), kInvalid, "9 dimensions");
  REQUIRE_FAILS(refused([](abi::DLTensor* d) { d->byte_offset = 2; }), kInvalid, "not aligned");
  static int64_t huge[] = {int64_t{1} << 62, 1};
  REQUIRE_FAILS(refused([](abi::DLTensor* d) { d->strides = huge; }), kInvalid, "spans more");
  REQUIRE_FAILS(refused([](abi::DLTensor* d) { d->data = nullptr; }), kInvalid, "null");
  REQUIRE_FAILS(Tensor<float>::FromDlpack(context, nullptr), kInvalid, "null");
  REQUIRE(n_deleted == 0);
  {
    auto borrowed = Require(Tensor<float>::FromDlpack(context, &theirs));
    REQUIRE(*borrowed.ToHost() == std::vector<float>({0, 2, 4, 1, 3, 5}));
    REQUIRE(n_deleted == 0);
  }
  REQUIRE(n_deleted == 1);

  // A context ends after what was lent of it; the deleter may run on any thread.
  auto y = Tensor<double>::Ones(context, {4});
  REQUIRE_OK(y);
  lent = y->ToDlpack();
  REQUIRE_OK(lent);
  REQUIRE_OK(context.Barrier());
  y = Tensor<double>();
  context = Context();
  auto* const last = static_cast<DLManagedTensor*>(*lent);
  REQUIRE(static_cast<double*>(last->dl_tensor.data)[3] == 1);
  std::thread([last] { last->deleter(last); }).join();
  return 0;
}

class TensorTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TensorTest, OnTwoRanks) {
  auto daemon = Daemon::Start();
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  RankProcesses::Options options;
  options.runtime_dir = (*daemon)->runtime_dir();
  RankProcesses ranks(GetParam(), 2, options);
  ranks.ExpectAllSucceed();
}

INSTANTIATE_TEST_SUITE_P(Scenarios, TensorTest,
                         ::testing::Values("factories", "views", "mistakes", "dlpack",
                                           "writes_after_factories"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"factories", iris::Factories},
                                  {"views", iris::Views},
                                  {"mistakes", iris::Mistakes},
                                  {"dlpack", iris::Dlpack},
                                  {"writes_after_factories", iris::WritesAfterFactories}});
}
