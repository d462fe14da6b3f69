// The C API against a real irisd, as programs call it that were written wrongly or with other
// headers: handles of nothing, structs of other sizes, calls after the end, from several threads,
// and in a forked child.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "device/base/bytes.h"
#include "iris/c_api.h"
#include "iris/types.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"

namespace iris {
namespace {

using testing::Daemon;
using ::testing::HasSubstr;
using testing::RankProcesses;

constexpr uint64_t kMiB = 1 << 20;

std::string Message() { return iris_error_message(); }

#define EXPECT_FAILS(expression, code, text)                                  \
  do {                                                                        \
    EXPECT_EQ((expression), (code)) << #expression << " says: " << Message(); \
    EXPECT_THAT(Message(), HasSubstr(text)) << #expression;                   \
  } while (false)
#define EXPECT_OK(expression) EXPECT_EQ((expression), IRIS_OK) << Message()
#define ASSERT_OK(expression) ASSERT_EQ((expression), IRIS_OK) << Message()

// In a rank.
#define REQUIRE(condition)                                                                     \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      std::cout << "REQUIRE failed, line " << __LINE__ << ": " #condition << ": " << Message() \
                << std::endl;                                                                  \
      return 1;                                                                                \
    }                                                                                          \
  } while (false)

iris_context_options Options() {
  iris_context_options options;
  iris_context_options_init(&options);
  options.heap_bytes = 4 * kMiB;
  options.max_heap_bytes = 16 * kMiB;
  return options;
}

// A struct of a caller's, with more bytes than this header knows.
template <typename T>
struct Longer {
  T known = {};
  uint64_t unknown[2] = {};
};

template <typename T>
T Sized() {
  T value = {};
  value.size = sizeof(value);
  return value;
}

// Everything that there is one of.
struct Objects {
  iris_context* context = nullptr;
  iris_team* team = nullptr;
  iris_stream* stream = nullptr;
  iris_event* event = nullptr;
  iris_graph* graph = nullptr;
  iris_comm* comm = nullptr;
};

// IRIS_OK, or the code of what failed. Collective over the job.
iris_code MakeObjects(Objects* out) {
  uint32_t n_ranks = 0;
  {
    auto info = Sized<iris_context_info>();
    if (iris_code c = iris_context_get_info(out->context, &info); c != IRIS_OK) return c;
    n_ranks = info.n_ranks;
  }
  std::vector<uint32_t> ranks(n_ranks);
  for (uint32_t r = 0; r < n_ranks; ++r) ranks[r] = r;
  iris_code c = iris_team_create(out->context, nullptr, ranks.data(), n_ranks, &out->team);
  if (c == IRIS_OK) c = iris_stream_create(out->context, &out->stream);
  if (c == IRIS_OK) c = iris_event_create(out->context, &out->event);
  if (c == IRIS_OK) c = iris_capture_begin(out->stream);
  if (c == IRIS_OK) c = iris_capture_end(out->stream, &out->graph);
  if (c == IRIS_OK) c = iris_comm_create(out->context, nullptr, nullptr, &out->comm);
  return c;
}

// The functions that take a handle of each kind, with everything else in order. `o` has the other
// objects.
using Calls = std::map<std::string, std::function<iris_code(void*)>>;

Calls ContextCalls(const Objects& o) {
  const auto context = [](void* h) { return static_cast<iris_context*>(h); };
  static char bytes[4096];
  static uint32_t number;
  static uint64_t offset;
  static int64_t pid;
  static void* memory;
  static const void* value;
  static size_t value_bytes;
  return {
      {"get_info",
       [=](void* h) {
         auto info = Sized<iris_context_info>();
         return iris_context_get_info(context(h), &info);
       }},
      {"get_timings",
       [=](void* h) {
         auto timings = Sized<iris_create_timings>();
         return iris_context_get_timings(context(h), &timings);
       }},
      {"health", [=](void* h) { return iris_context_health(context(h)); }},
      {"leave", [=](void* h) { return iris_context_leave(context(h)); }},
      {"peer_pid", [=](void* h) { return iris_context_peer_pid(context(h), 0, &pid); }},
      {"get_device", [=](void* h) { return iris_context_get_device(context(h), bytes, 8); }},
      {"locate", [=](void* h) { return iris_locate(context(h), bytes, &number, &offset); }},
      {"team_info",
       [=](void* h) {
         auto info = Sized<iris_team_info>();
         return iris_team_get_info(context(h), nullptr, &info);
       }},
      {"team_device", [=](void* h) { return iris_team_get_device(context(h), nullptr, bytes, 8); }},
      {"team_create",
       [=](void* h) {
         iris_team* team = nullptr;
         return iris_team_create(context(h), nullptr, &number, 1, &team);
       }},
      {"team_split",
       [=](void* h) {
         iris_team* team = nullptr;
         return iris_team_split(context(h), nullptr, 0, 0, &team);
       }},
      {"team_destroy", [=](void* h) { return iris_team_destroy(context(h), o.team); }},
      {"allocate",
       [=](void* h) {
         auto options = Sized<iris_allocate_options>();
         auto allocation = Sized<iris_allocation>();
         return iris_allocate(context(h), nullptr, &options, &allocation);
       }},
      {"free",
       [=](void* h) {
         const auto allocation = Sized<iris_allocation>();
         return iris_free(context(h), &allocation);
       }},
      {"allocate_local",
       [=](void* h) {
         auto options = Sized<iris_allocate_options>();
         auto allocation = Sized<iris_allocation>();
         return iris_allocate_local(context(h), &options, &allocation);
       }},
      {"register",
       [=](void* h) {
         auto options = Sized<iris_allocate_options>();
         options.bytes = 1;
         auto allocation = Sized<iris_allocation>();
         return iris_register(context(h), &allocation, &options, &allocation);
       }},
      {"register_symmetric",
       [=](void* h) {
         auto options = Sized<iris_allocate_options>();
         options.bytes = 1;
         auto allocation = Sized<iris_allocation>();
         return iris_register_symmetric(context(h), nullptr, &allocation, &options, &allocation);
       }},
      {"is_symmetric",
       [=](void* h) {
         int32_t is = 0;
         return iris_is_symmetric(context(h), &is, 1, &is);
       }},
      {"publish_local",
       [=](void* h) {
         const auto allocation = Sized<iris_allocation>();
         return iris_publish_local(context(h), &allocation, "x");
       }},
      {"open_local",
       [=](void* h) {
         auto opened = Sized<iris_opened>();
         return iris_open_local(context(h), 0, "x", 1, &opened);
       }},
      {"close_local",
       [=](void* h) {
         const auto opened = Sized<iris_opened>();
         return iris_close_local(context(h), &opened);
       }},
      {"grow", [=](void* h) { return iris_grow(context(h), 1); }},
      {"barrier", [=](void* h) { return iris_barrier(context(h), nullptr, 0); }},
      {"broadcast_bytes",
       [=](void* h) {
         return iris_broadcast_bytes(context(h), nullptr, "x", 1, 0, &value, &value_bytes);
       }},
      {"stream_create",
       [=](void* h) {
         iris_stream* stream = nullptr;
         return iris_stream_create(context(h), &stream);
       }},
      {"stream_wrap",
       [=](void* h) {
         iris_stream* stream = nullptr;
         return iris_stream_wrap(context(h), nullptr, &stream);
       }},
      {"event_create",
       [=](void* h) {
         iris_event* event = nullptr;
         return iris_event_create(context(h), &event);
       }},
      {"malloc_device", [=](void* h) { return iris_malloc_device(context(h), 8, &memory); }},
      {"malloc_host", [=](void* h) { return iris_malloc_host(context(h), 8, &memory); }},
      {"free_device", [=](void* h) { return iris_free_device(context(h), bytes); }},
      {"free_host", [=](void* h) { return iris_free_host(context(h), bytes); }},
      {"put",
       [=](void* h) { return iris_put_async(context(h), bytes, bytes, 8, 0, o.stream, nullptr); }},
      {"get",
       [=](void* h) { return iris_get_async(context(h), bytes, bytes, 8, 0, o.stream, nullptr); }},
      {"prepare_signals", [=](void* h) { return iris_prepare_signals(context(h)); }},
      {"comm_create",
       [=](void* h) {
         iris_comm* comm = nullptr;
         return iris_comm_create(context(h), nullptr, nullptr, &comm);
       }},
      {"matmul_bytes",
       [=](void* h) {
         uint64_t n_bytes = 0;
         return iris_matmul_bytes(context(h), 1, nullptr, nullptr, &n_bytes);
       }},
      {"moe_get_sizes",
       [=](void* h) { return iris_moe_get_sizes(context(h), 1, 0, nullptr, nullptr); }},
  };
}

Calls StreamCalls(const Objects& o) {
  const auto stream = [](void* h) { return static_cast<iris_stream*>(h); };
  static char bytes[64];
  static int32_t idle;
  return {
      {"synchronize", [=](void* h) { return iris_stream_synchronize(stream(h)); }},
      {"idle", [=](void* h) { return iris_stream_idle(stream(h), &idle); }},
      {"copy", [=](void* h) { return iris_copy_async(bytes, bytes + 32, 8, stream(h)); }},
      {"fill", [=](void* h) { return iris_fill_async(bytes, 1, 8, stream(h)); }},
      {"capture_begin", [=](void* h) { return iris_capture_begin(stream(h)); }},
      {"capture_end",
       [=](void* h) {
         iris_graph* graph = nullptr;
         return iris_capture_end(stream(h), &graph);
       }},
      {"graph_launch", [=](void* h) { return iris_graph_launch(o.graph, stream(h)); }},
      {"event_record", [=](void* h) { return iris_event_record(o.event, stream(h)); }},
      {"event_wait", [=](void* h) { return iris_event_wait(stream(h), o.event); }},
      {"put",
       [=](void* h) { return iris_put_async(o.context, bytes, bytes, 8, 0, stream(h), nullptr); }},
      {"get",
       [=](void* h) { return iris_get_async(o.context, bytes, bytes, 8, 0, stream(h), nullptr); }},
      {"all_reduce",
       [=](void* h) {
         return iris_all_reduce(o.comm, bytes, bytes, 1, IRIS_F32, IRIS_SUM, stream(h), 0);
       }},
      {"comm_barrier", [=](void* h) { return iris_comm_barrier(o.comm, stream(h)); }},
      {"comm_synchronize", [=](void* h) { return iris_comm_synchronize(o.comm, stream(h)); }},
  };
}

Calls EventCalls(const Objects& o) {
  const auto event = [](void* h) { return static_cast<iris_event*>(h); };
  static uint64_t ns;
  return {
      {"record", [=](void* h) { return iris_event_record(event(h), o.stream); }},
      {"wait", [=](void* h) { return iris_event_wait(o.stream, event(h)); }},
      {"elapsed from", [=](void* h) { return iris_event_elapsed(event(h), o.event, &ns); }},
      {"elapsed to", [=](void* h) { return iris_event_elapsed(o.event, event(h), &ns); }},
  };
}

Calls GraphCalls(const Objects& o) {
  return {{"launch",
           [=](void* h) { return iris_graph_launch(static_cast<iris_graph*>(h), o.stream); }}};
}

Calls CommCalls(const Objects& o) {
  const auto comm = [](void* h) { return static_cast<iris_comm*>(h); };
  static float x[64], y[64];
  static uint64_t one[1] = {1}, zero[1] = {0};
  iris_stream* const s = o.stream;
  return {
      {"all_reduce",
       [=](void* h) { return iris_all_reduce(comm(h), x, y, 1, IRIS_F32, IRIS_SUM, s, 0); }},
      {"reduce_scatter",
       [=](void* h) { return iris_reduce_scatter(comm(h), x, y, 1, IRIS_F32, IRIS_SUM, s, 0); }},
      {"reduce",
       [=](void* h) { return iris_reduce(comm(h), x, y, 1, IRIS_F32, IRIS_SUM, 0, s, 0); }},
      {"all_gather", [=](void* h) { return iris_all_gather(comm(h), x, y, 1, IRIS_F32, s, 0); }},
      {"gather", [=](void* h) { return iris_gather(comm(h), x, y, 1, IRIS_F32, 0, s, 0); }},
      {"scatter", [=](void* h) { return iris_scatter(comm(h), x, y, 1, IRIS_F32, 0, s, 0); }},
      {"all_to_all", [=](void* h) { return iris_all_to_all(comm(h), x, y, 1, IRIS_F32, s, 0); }},
      {"all_to_all_v",
       [=](void* h) {
         return iris_all_to_all_v(comm(h), x, one, zero, y, one, zero, 1, IRIS_F32, s);
       }},
      {"broadcast", [=](void* h) { return iris_broadcast(comm(h), x, y, 1, IRIS_F32, 0, s, 0); }},
      {"send", [=](void* h) { return iris_send(comm(h), x, 1, IRIS_F32, 0, s); }},
      {"recv", [=](void* h) { return iris_recv(comm(h), y, 1, IRIS_F32, 0, s); }},
      {"send_recv",
       [=](void* h) { return iris_send_recv(comm(h), x, 1, 0, y, 1, 0, IRIS_F32, s); }},
      {"group_start", [=](void* h) { return iris_group_start(comm(h)); }},
      {"group_end", [=](void* h) { return iris_group_end(comm(h)); }},
      {"barrier", [=](void* h) { return iris_comm_barrier(comm(h), s); }},
      {"check", [=](void* h) { return iris_comm_check(comm(h)); }},
      {"synchronize", [=](void* h) { return iris_comm_synchronize(comm(h), s); }},
      {"reset", [=](void* h) { return iris_comm_reset(comm(h)); }},
      {"matmul_choose", [=](void* h) { return iris_matmul_choose(comm(h), nullptr, nullptr); }},
      {"matmul_launch", [=](void* h) { return iris_matmul_launch(comm(h), nullptr, s); }},
      {"moe_prepare", [=](void* h) { return iris_moe_prepare(comm(h)); }},
      {"moe_dispatch", [=](void* h) { return iris_moe_dispatch(comm(h), nullptr, nullptr, s); }},
      {"moe_combine", [=](void* h) { return iris_moe_combine(comm(h), nullptr, nullptr, s); }},
      {"norm_choose", [=](void* h) { return iris_norm_choose(comm(h), nullptr, nullptr); }},
      {"norm_launch", [=](void* h) { return iris_norm_launch(comm(h), nullptr, s); }},
      {"release", [=](void* h) { return iris_comm_release(comm(h)); }},
  };
}

Calls DestroyCalls() {
  return {
      {"context", [](void* h) { return iris_context_destroy(static_cast<iris_context*>(h)); }},
      {"stream", [](void* h) { return iris_stream_destroy(static_cast<iris_stream*>(h)); }},
      {"event", [](void* h) { return iris_event_destroy(static_cast<iris_event*>(h)); }},
      {"graph", [](void* h) { return iris_graph_destroy(static_cast<iris_graph*>(h)); }},
      {"communicator", [](void* h) { return iris_comm_destroy(static_cast<iris_comm*>(h)); }},
  };
}

// A config of four experts, and a norm, that are right.
iris_moe_config Experts() {
  auto config = Sized<iris_moe_config>();
  config.n_experts = 4;
  config.top_k = 2;
  config.hidden = 16;
  config.max_tokens = 8;
  config.in_dtype = IRIS_F32;
  return config;
}
iris_norm SmallNorm() {
  auto norm = Sized<iris_norm>();
  norm.operation = IRIS_ALL_REDUCE_RMS_NORM;
  norm.rows = 2;
  norm.hidden = 16;
  norm.in_dtype = norm.out_dtype = IRIS_F32;
  return norm;
}

// Scenarios: what a rank does.

// Two halves, in the order of the keys, that work each for itself.
int Split(const std::vector<std::string>&) {
  const iris_context_options options = Options();
  iris_context* context = nullptr;
  REQUIRE(iris_context_create(&options, &context) == IRIS_OK);
  auto world = Sized<iris_context_info>();
  REQUIRE(iris_context_get_info(context, &world) == IRIS_OK);
  const uint32_t me = world.rank;

  iris_team* half = nullptr;
  REQUIRE(iris_team_split(context, nullptr, static_cast<int32_t>(me % 2), -static_cast<int32_t>(me),
                          &half) == IRIS_OK);
  auto team = Sized<iris_team_info>();
  REQUIRE(iris_team_get_info(context, half, &team) == IRIS_OK);
  REQUIRE(team.n_ranks == 2 && team.id != 0);
  REQUIRE(team.ranks[0] == me % 2 + 2 &&
          team.ranks[1] == me % 2);  // the greater one has the less key
  REQUIRE(team.index == (me >= 2 ? 0 : 1));
  DeviceTeam device;
  REQUIRE(iris_team_get_device(context, half, &device, sizeof(device)) == IRIS_OK);
  REQUIRE(device.id == team.id && device.size == 2 && device.members[0] == me % 2 + 2);

  auto wanted = Sized<iris_allocate_options>();
  wanted.bytes = (1 + me % 2) * 4096;  // what the halves want differs
  auto x = Sized<iris_allocation>();
  REQUIRE(iris_allocate(context, half, &wanted, &x) == IRIS_OK);
  REQUIRE(x.team_id == team.id && x.bytes >= wanted.bytes);
  auto* const mine = static_cast<uint64_t*>(x.address);
  const uint32_t other = team.ranks[1 - team.index];
  uint64_t* const theirs =
      reinterpret_cast<uint64_t*>(world.base + other * world.stride_bytes + x.offset_bytes);
  theirs[0] = 100 + me;
  REQUIRE(iris_barrier(context, half, 0) == IRIS_OK);
  REQUIRE(mine[0] == 100 + other);

  const void* said = nullptr;
  size_t n_said = 0;
  const std::string text = absl::StrCat("half ", me);
  REQUIRE(iris_broadcast_bytes(context, half, text.data(), text.size(), me % 2, &said, &n_said) ==
          IRIS_OK);
  REQUIRE(std::string(static_cast<const char*>(said), n_said) == absl::StrCat("half ", me % 2));
  iris_comm* comm = nullptr;
  iris_stream* stream = nullptr;
  REQUIRE(iris_stream_create(context, &stream) == IRIS_OK);
  REQUIRE(iris_comm_create(context, half, nullptr, &comm) == IRIS_OK);
  uint32_t value = me, sum = 0;
  REQUIRE(iris_all_reduce(comm, &value, &sum, 1, IRIS_I32, IRIS_SUM, stream, 0) == IRIS_OK);
  REQUIRE(iris_comm_synchronize(comm, stream) == IRIS_OK);
  REQUIRE(sum == me + other);
  REQUIRE(iris_comm_release(comm) == IRIS_OK);
  REQUIRE(iris_free(context, &x) == IRIS_OK);
  REQUIRE(iris_team_destroy(context, half) == IRIS_OK);
  REQUIRE(iris_barrier(context, half, 0) == IRIS_INVALID_ARGUMENT);

  // One is in no team; equal keys keep the order of the parent.
  iris_team* three = nullptr;
  REQUIRE(iris_team_split(context, nullptr, me == 1 ? -1 : 7, 0, &three) == IRIS_OK);
  team = Sized<iris_team_info>();
  REQUIRE(iris_team_get_info(context, three, &team) == IRIS_OK);
  if (me == 1) {
    REQUIRE(team.index == -1 && team.n_ranks == 0);
    REQUIRE(iris_barrier(context, three, 0) == IRIS_FAILED_PRECONDITION);
    REQUIRE(Message().find("not a member") != std::string::npos);
  } else {
    REQUIRE(team.n_ranks == 3 && team.ranks[0] == 0 && team.ranks[1] == 2 && team.ranks[2] == 3);
    REQUIRE(iris_barrier(context, three, 0) == IRIS_OK);
  }
  REQUIRE(iris_team_destroy(context, three) == IRIS_OK);

  // One asks for something else: the same error on every rank, which go on afterwards.
  iris_team* none = nullptr;
  REQUIRE((me == 2 ? iris_broadcast_bytes(context, nullptr, "", 0, 2, &said, &n_said)
                   : iris_team_split(context, nullptr, 1, 0, &none)) == IRIS_INVALID_ARGUMENT);
  REQUIRE(Message().find("the ranks differ: rank ") != std::string::npos);
  REQUIRE(Message().find(" asked for split") != std::string::npos);
  REQUIRE(Message().find(" asked for broadcast(root=2)") != std::string::npos);
  REQUIRE(iris_barrier(context, nullptr, 0) == IRIS_OK);
  REQUIRE(iris_context_destroy(context) == IRIS_OK);
  return 0;
}

// In a forked child every call that would do something fails, ends do nothing, and the parent goes
// on.
int Fork(const std::vector<std::string>&) {
  const iris_context_options options = Options();
  Objects o;
  REQUIRE(iris_context_create(&options, &o.context) == IRIS_OK);
  REQUIRE(MakeObjects(&o) == IRIS_OK);
  const pid_t child = fork();
  if (child == 0) {
    // What a parent may know, a child may.
    const std::vector<std::string> harmless = {
        "get_info", "get_timings", "peer_pid", "get_device", "locate", "team_info", "team_device"};
    Calls calls = ContextCalls(o);
    for (const std::string& name : harmless) calls.erase(name);
    const std::vector<std::pair<Calls, void*>> all = {{calls, o.context},
                                                      {StreamCalls(o), o.stream},
                                                      {EventCalls(o), o.event},
                                                      {GraphCalls(o), o.graph},
                                                      {CommCalls(o), o.comm}};
    for (const auto& [each, handle] : all) {
      for (const auto& [name, call] : each) {
        const iris_code code = call(handle);
        if (code != IRIS_FAILED_PRECONDITION || Message().find("parent") == std::string::npos) {
          std::cout << name << " gave " << iris_code_name(code) << ": " << Message() << std::endl;
          _exit(1);
        }
      }
    }
    iris_context* another = nullptr;
    bool right = iris_context_create(&options, &another) == IRIS_FAILED_PRECONDITION;
    right = right && Message().find("forked") != std::string::npos;
    right = right && iris_comm_destroy(o.comm) == IRIS_OK;
    right = right && iris_graph_destroy(o.graph) == IRIS_OK;
    right = right && iris_event_destroy(o.event) == IRIS_OK;
    right = right && iris_stream_destroy(o.stream) == IRIS_OK;
    right = right && iris_context_destroy(o.context) == IRIS_OK;
    if (!right) std::cout << "the last: " << Message() << std::endl;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE(iris_context_health(o.context) == IRIS_OK);
  REQUIRE(iris_barrier(o.context, o.team, 0) == IRIS_OK);
  REQUIRE(iris_comm_barrier(o.comm, o.stream) == IRIS_OK);
  REQUIRE(iris_comm_synchronize(o.comm, o.stream) == IRIS_OK);
  REQUIRE(iris_context_destroy(o.context) == IRIS_OK);
  return 0;
}

// Statics of a program end after the main thread's own memory: calls from there fail in order.
struct EndsLate {
  iris_context* context = nullptr;
  iris_stream* stream = nullptr;
  ~EndsLate() {
    if (context == nullptr) return;
    const bool right = iris_context_destroy(context) == IRIS_OK &&
                       iris_stream_destroy(stream) == IRIS_INVALID_ARGUMENT &&
                       iris_context_health(context) == IRIS_INVALID_ARGUMENT && Message().empty();
    _exit(right ? 0 : 17);
  }
};
EndsLate ends_late;

int Late(const std::vector<std::string>&) {
  const iris_context_options options = Options();
  REQUIRE(iris_context_create(&options, &ends_late.context) == IRIS_OK);
  REQUIRE(iris_stream_create(ends_late.context, &ends_late.stream) == IRIS_OK);
  REQUIRE(iris_locate(ends_late.context, nullptr, nullptr, nullptr) == IRIS_INVALID_ARGUMENT);
  REQUIRE(!Message().empty());
  return 0;
}

// Tests.

class AbiTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto daemon = Daemon::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = daemon->release();
  }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }
  void SetUp() override { ASSERT_NE(daemon_, nullptr); }

  iris_context_options Rank(int rank, int n_ranks) {
    iris_context_options options = Options();
    options.runtime_dir = daemon_->runtime_dir().c_str();
    options.job = job_.c_str();
    options.rank = rank;
    options.n_ranks = n_ranks;
    options.local_rank = rank;
    return options;
  }
  // Null, and a failed test, if there is none.
  iris_context* Alone() {
    job_ = absl::StrCat("abi-", n_jobs_++);
    const iris_context_options options = Rank(0, 1);
    iris_context* context = nullptr;
    EXPECT_OK(iris_context_create(&options, &context));
    return context;
  }
  void Run(const std::string& scenario, int n_ranks) {
    RankProcesses ranks(
        scenario, n_ranks,
        {.runtime_dir = daemon_->runtime_dir(), .job = absl::StrCat("abi-", n_jobs_++)});
    ranks.ExpectAllSucceed();
  }

  static inline Daemon* daemon_ = nullptr;
  static inline int n_jobs_ = 0;
  std::string job_ = absl::StrCat("abi-", n_jobs_++);
};

TEST_F(AbiTest, Split) { Run("split", 4); }
TEST_F(AbiTest, AForkedChildFailsAndHarmsNobody) { Run("fork", 2); }
TEST_F(AbiTest, CallsFromDestructorsOfStaticsFailInOrder) { Run("late", 1); }

TEST_F(AbiTest, WhatIsNoHandleOfTheKindIsRefused) {
  Objects o;
  o.context = Alone();
  ASSERT_OK(MakeObjects(&o));
  // One of each that is gone.
  Objects gone;
  gone.context = Alone();
  ASSERT_OK(MakeObjects(&gone));
  ASSERT_OK(iris_context_destroy(gone.context));

  struct Kind {
    const char* name;
    Calls calls;
    void* gone;
    void* foreign;
  };
  std::vector<Kind> kinds = {
      {"context", ContextCalls(o), gone.context, o.stream},
      {"stream", StreamCalls(o), gone.stream, o.event},
      {"event", EventCalls(o), gone.event, o.graph},
      {"graph", GraphCalls(o), gone.graph, o.comm},
      {"communicator", CommCalls(o), gone.comm, o.context},
  };
  for (const auto& [name, destroy] : DestroyCalls()) {
    for (Kind& kind : kinds) {
      if (kind.name == name) kind.calls["destroy"] = destroy;
    }
  }
  int on_the_stack = 0;
  std::string in_memory(1000, '\xff');
  for (const Kind& kind : kinds) {
    const std::pair<void*, const char*> cases[] = {
        {nullptr, "is null"},
        {kind.gone, "was destroyed"},
        {kind.foreign, "another kind of object"},
        {&on_the_stack, "no handle that Iris made"},
        {in_memory.data(), "no handle that Iris made"},
        {reinterpret_cast<void*>(~uint64_t{0}), "no handle that Iris made"},
        {reinterpret_cast<void*>(uint64_t{1}), "no handle that Iris made"},
    };
    for (const auto& [name, call] : kind.calls) {
      SCOPED_TRACE(absl::StrCat(kind.name, " ", name));
      for (const auto& [handle, text] : cases) {
        EXPECT_FAILS(call(handle), IRIS_INVALID_ARGUMENT, text);
        EXPECT_THAT(Message(), HasSubstr(kind.name));
      }
    }
  }
  // A team is asked for together with its context; null is the world.
  for (void* const handle : {static_cast<void*>(gone.team), static_cast<void*>(o.stream),
                             static_cast<void*>(&on_the_stack)}) {
    auto* const team = static_cast<iris_team*>(handle);
    EXPECT_FAILS(iris_barrier(o.context, team, 0), IRIS_INVALID_ARGUMENT, "the team handle");
    EXPECT_FAILS(iris_team_destroy(o.context, team), IRIS_INVALID_ARGUMENT, "the team handle");
    EXPECT_FAILS(iris_comm_create(o.context, team, nullptr, &o.comm), IRIS_INVALID_ARGUMENT,
                 "the team handle");
  }
  EXPECT_FAILS(iris_team_destroy(o.context, nullptr), IRIS_INVALID_ARGUMENT, "the world");
  // Nothing of that has harmed what is there.
  EXPECT_OK(iris_barrier(o.context, o.team, 0));
  EXPECT_OK(iris_comm_synchronize(o.comm, o.stream));
  EXPECT_OK(iris_context_destroy(o.context));
}

TEST_F(AbiTest, PlacesForAnswersMayNotBeNull) {
  Objects o;
  o.context = Alone();
  ASSERT_OK(MakeObjects(&o));
  iris_context* const c = o.context;
  const iris_context_options options = Rank(0, 1);
  const auto wanted = Sized<iris_allocate_options>();
  auto range = Sized<iris_allocation>();
  auto opened = Sized<iris_opened>();
  uint32_t rank = 0;
  uint64_t offset = 0;
  size_t n_bytes = 0;
  int32_t device = 0;
  void* native = nullptr;
  const void* value = nullptr;
  const uint32_t zero = 0;
  const iris_moe_config moe = Experts();
  auto sizes = Sized<iris_moe_sizes>();
  auto dispatch = Sized<iris_moe_dispatch_call>();
  dispatch.id_dtype = IRIS_I32;
  auto combine = Sized<iris_moe_combine_call>();
  combine.y_dtype = combine.out_dtype = IRIS_F32;
  const iris_norm norm = SmallNorm();
  auto norm_plan = Sized<iris_norm_plan>();
  auto matmul = Sized<iris_matmul>();
  matmul.operation = IRIS_MATMUL_ALL_REDUCE;
  auto matmul_plan = Sized<iris_matmul_plan>();
  for (const iris_code code : {
           iris_launcher_read(nullptr),
           iris_context_create(nullptr, &o.context),
           iris_context_create(&options, nullptr),
           iris_context_get_info(c, nullptr),
           iris_context_get_timings(c, nullptr),
           iris_context_peer_pid(c, 0, nullptr),
           iris_context_get_device(c, nullptr, 8),
           iris_locate(c, &range, nullptr, &offset),
           iris_locate(c, &range, &rank, nullptr),
           iris_team_get_info(c, nullptr, nullptr),
           iris_team_get_device(c, nullptr, nullptr, 8),
           iris_team_create(c, nullptr, &zero, 1, nullptr),
           iris_team_create(c, nullptr, nullptr, 1, &o.team),
           iris_team_split(c, nullptr, 0, 0, nullptr),
           iris_allocate(c, nullptr, &wanted, nullptr),
           iris_allocate(c, nullptr, nullptr, &range),
           iris_allocate_local(c, &wanted, nullptr),
           iris_allocate_local(c, nullptr, &range),
           iris_publish_local(c, nullptr, "x"),
           iris_publish_local(c, &range, nullptr),
           iris_open_local(c, 0, "x", 1, nullptr),
           iris_open_local(c, 0, nullptr, 1, &opened),
           iris_close_local(c, nullptr),
           iris_free(c, nullptr),
           iris_broadcast_bytes(c, nullptr, nullptr, 1, 0, &value, &n_bytes),
           iris_broadcast_bytes(c, nullptr, "x", 1, 0, nullptr, &n_bytes),
           iris_broadcast_bytes(c, nullptr, "x", 1, 0, &value, nullptr),
           iris_stream_create(c, nullptr),
           iris_stream_wrap(c, nullptr, nullptr),
           iris_stream_idle(o.stream, nullptr),
           iris_stream_native(o.stream, nullptr, &device),
           iris_stream_native(o.stream, &native, nullptr),
           iris_copy_async(nullptr, &range, 8, o.stream),
           iris_copy_async(&range, nullptr, 8, o.stream),
           iris_fill_async(nullptr, 0, 8, o.stream),
           iris_capture_end(o.stream, nullptr),
           iris_event_create(c, nullptr),
           iris_event_elapsed(o.event, o.event, nullptr),
           iris_malloc_device(c, 8, nullptr),
           iris_malloc_host(c, 8, nullptr),
           iris_comm_create(c, nullptr, nullptr, nullptr),
           iris_all_reduce(o.comm, nullptr, &offset, 1, IRIS_I64, IRIS_SUM, o.stream, 0),
           iris_all_to_all_v(o.comm, &offset, &offset, nullptr, &offset, &offset, &offset, 1,
                             IRIS_U64, o.stream),
           iris_moe_get_sizes(c, 1, 0, nullptr, &sizes),
           iris_moe_get_sizes(c, 1, 0, &moe, nullptr),
           iris_moe_dispatch(o.comm, nullptr, &dispatch, o.stream),
           iris_moe_dispatch(o.comm, &moe, nullptr, o.stream),
           iris_moe_dispatch(o.comm, &moe, &dispatch, o.stream),
           iris_moe_combine(o.comm, nullptr, &combine, o.stream),
           iris_moe_combine(o.comm, &moe, nullptr, o.stream),
           iris_moe_combine(o.comm, &moe, &combine, o.stream),
           iris_norm_choose(o.comm, nullptr, &norm_plan),
           iris_norm_choose(o.comm, &norm, nullptr),
           iris_norm_launch(o.comm, nullptr, o.stream),
           iris_norm_launch(o.comm, &norm, o.stream),
           iris_matmul_bytes(c, 1, nullptr, nullptr, &offset),
           iris_matmul_bytes(c, 1, nullptr, &matmul, nullptr),
           iris_matmul_choose(o.comm, nullptr, &matmul_plan),
           iris_matmul_launch(o.comm, nullptr, o.stream),
           iris_context_reaches(c, 0, nullptr),
           iris_team_local(c, nullptr),
           iris_team_rail(c, nullptr),
           iris_put(c, nullptr, &offset, 8, 0, nullptr),
           iris_put_rows(c, nullptr, &offset, nullptr, 0, nullptr),
           iris_get(c, &offset, nullptr, 8, 0),
           iris_get_rows(c, &offset, nullptr, nullptr, 0),
           iris_send_signal(c, 0, nullptr),
           iris_atomic_fetch(c, nullptr, nullptr),
       }) {
    EXPECT_EQ(code, IRIS_INVALID_ARGUMENT);
    EXPECT_THAT(Message(), ::testing::Not(::testing::IsEmpty()));
  }
  // Null that is allowed.
  EXPECT_OK(iris_free_device(c, nullptr));
  EXPECT_OK(iris_free_host(c, nullptr));
  iris_context_options_init_sized(nullptr, 100);
  EXPECT_OK(iris_context_destroy(c));
}

TEST_F(AbiTest, StructsOfOtherSizes) {
  iris_context* context = nullptr;
  iris_context_options options = Rank(0, 1);
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{96}, size_t{1} << 20, ~size_t{0}}) {  // at first 104
    options.size = size;
    EXPECT_FAILS(iris_context_create(&options, &context), IRIS_INVALID_ARGUMENT,
                 absl::StrCat("its size is ", size));
  }
  // Of a newer header: what is left at zero says nothing; what is not would be ignored.
  Longer<iris_context_options> longer;
  longer.known = Rank(0, 1);
  longer.known.size = sizeof(longer);
  longer.unknown[1] = 1;
  EXPECT_FAILS(iris_context_create(&longer.known, &context), IRIS_INVALID_ARGUMENT,
               absl::StrCat("a field at byte ", sizeof(options) + 8));
  longer.unknown[1] = 0;
  ASSERT_OK(iris_context_create(&longer.known, &context));

  auto wanted = Sized<iris_allocate_options>();
  auto range = Sized<iris_allocation>();
  wanted.size -= 1;
  EXPECT_FAILS(iris_allocate(context, nullptr, &wanted, &range), IRIS_INVALID_ARGUMENT,
               "iris_allocate_options: its size is");
  Longer<iris_allocate_options> wanted_longer;
  wanted_longer.known.size = sizeof(wanted_longer);
  wanted_longer.known.bytes = 64;
  wanted_longer.unknown[0] = uint64_t{1} << 63;
  EXPECT_FAILS(iris_allocate(context, nullptr, &wanted_longer.known, &range), IRIS_INVALID_ARGUMENT,
               "a newer libiris.so");
  wanted_longer.unknown[0] = 0;
  range.size = 0;
  EXPECT_FAILS(iris_allocate(context, nullptr, &wanted_longer.known, &range), IRIS_INVALID_ARGUMENT,
               "iris_allocation: its size is 0");
  range.size = sizeof(range);
  EXPECT_OK(iris_allocate(context, nullptr, &wanted_longer.known, &range));
  range.size = 8;
  EXPECT_FAILS(iris_free(context, &range), IRIS_INVALID_ARGUMENT, "its size is 8");
  range.size = sizeof(range);
  EXPECT_OK(iris_free(context, &range));

  // An answer is written as far as the caller's header knows it, and cleared beyond what ours does.
  Longer<iris_context_info> info;
  info.unknown[0] = info.unknown[1] = 77;
  info.known.size = sizeof(info);
  EXPECT_OK(iris_context_get_info(context, &info.known));
  EXPECT_EQ(info.unknown[0] + info.unknown[1], 0u);
  EXPECT_EQ(info.known.n_ranks, 1u);
  EXPECT_STREQ(info.known.backend, "emu");
  std::memset(static_cast<void*>(&info), 0x55, sizeof(info));
  info.known.size = 16;
  EXPECT_OK(iris_context_get_info(context, &info.known));
  EXPECT_EQ(info.known.size, 16u);
  EXPECT_EQ(info.known.rank, 0u);
  EXPECT_EQ(info.known.n_ranks, 1u);
  EXPECT_EQ(info.known.job_id, 0x5555555555555555u) << "beyond the caller's struct";
  info.known.size = 7;
  EXPECT_FAILS(iris_context_get_info(context, &info.known), IRIS_INVALID_ARGUMENT, "size is 7");

  Objects o;
  o.context = context;
  ASSERT_OK(MakeObjects(&o));
  uint64_t word = 0;
  auto signal = Sized<iris_signal>();
  signal.size = 16;
  EXPECT_FAILS(iris_put_async(context, &word, &word, 8, 0, o.stream, &signal),
               IRIS_INVALID_ARGUMENT, "iris_signal: its size is 16");
  signal.size = sizeof(signal);
  signal.op = 2;
  EXPECT_FAILS(iris_put_async(context, &word, &word, 8, 0, o.stream, &signal),
               IRIS_INVALID_ARGUMENT, "2 is no iris_signal_op");
  EXPECT_FAILS(iris_put_rows_async(context, &word, &word, nullptr, 0, o.stream, nullptr),
               IRIS_INVALID_ARGUMENT, "iris_rows");
  auto rows = Sized<iris_rows>();
  rows.size = 39;
  EXPECT_FAILS(iris_get_rows_async(context, &word, &word, &rows, 0, o.stream, nullptr),
               IRIS_INVALID_ARGUMENT, "iris_rows: its size is 39");
  auto comm_options = Sized<iris_comm_options>();
  comm_options.size = 0;
  EXPECT_FAILS(iris_comm_create(context, nullptr, &comm_options, &o.comm), IRIS_INVALID_ARGUMENT,
               "iris_comm_options: its size is 0");
  auto launcher = Sized<iris_launcher>();
  launcher.size = sizeof(size_t) - 1;
  EXPECT_FAILS(iris_launcher_read(&launcher), IRIS_INVALID_ARGUMENT, "iris_launcher");
  EXPECT_OK(iris_context_destroy(context));
}

// A program that knows less than this library of what it is given.
TEST_F(AbiTest, KernelsOfOtherSizesGetTheirPart) {
  iris_context* const context = Alone();
  DeviceContext whole;
  ASSERT_OK(iris_context_get_device(context, &whole, sizeof(whole)));
  unsigned char part[sizeof(whole) + 64];
  for (const size_t bytes : {size_t{0}, size_t{12}, sizeof(whole), sizeof(part)}) {
    std::memset(part, 0xee, sizeof(part));
    ASSERT_OK(iris_context_get_device(context, part, bytes));
    const size_t known = std::min(bytes, sizeof(whole));
    EXPECT_EQ(std::memcmp(part, &whole, known), 0) << bytes;
    for (size_t i = known; i < bytes; ++i) ASSERT_EQ(part[i], 0) << i;
    for (size_t i = bytes; i < sizeof(part); ++i) ASSERT_EQ(part[i], 0xee) << i;
  }
  EXPECT_FAILS(iris_context_get_device(context, part, size_t{1} << 40), IRIS_INVALID_ARGUMENT,
               "DeviceContext");
  EXPECT_OK(iris_context_destroy(context));
}

TEST_F(AbiTest, VersionsThatDoNotFit) {
  iris_context* context = nullptr;
  iris_context_options options = Rank(0, 1);
  EXPECT_EQ(options.header_version, static_cast<uint32_t>(IRIS_VERSION));
  EXPECT_EQ(iris_version(), static_cast<uint32_t>(IRIS_VERSION));
  for (const uint32_t version : {0u, (IRIS_VERSION_MAJOR + 1) * 1000u, ~0u}) {
    options.header_version = version;
    EXPECT_FAILS(iris_context_create(&options, &context), IRIS_FAILED_PRECONDITION,
                 absl::StrCat("the headers of Iris ", version / 1000, ".", version % 1000));
    EXPECT_THAT(Message(), HasSubstr(iris_version_string()));
  }
  options = Rank(0, 1);
  options.kernels = "emu";
  for (const uint32_t abi : {0u, IRIS_DEVICE_ABI + 1u}) {
    options.device_abi = abi;
    EXPECT_FAILS(iris_context_create(&options, &context), IRIS_FAILED_PRECONDITION,
                 absl::StrCat("device ABI ", abi));
  }
  options.device_abi = IRIS_DEVICE_ABI;
  options.kernels = "other";
  EXPECT_FAILS(iris_context_create(&options, &context), IRIS_FAILED_PRECONDITION,
               "link iris-device-emu");
  EXPECT_THAT(Message(), HasSubstr("built for the backend 'other'"));
  EXPECT_THAT(Message(), HasSubstr("start irisd with --backend other"));
  // A newer minor version of the header, and kernels that fit.
  options.kernels = "emu";
  options.header_version = IRIS_VERSION + 1;
  ASSERT_OK(iris_context_create(&options, &context));
  EXPECT_OK(iris_context_destroy(context));
}

TEST_F(AbiTest, WhatIsOutOfRangeIsNamed) {
  iris_context* context = nullptr;
  for (int64_t iris_context_options::*const time :
       {&iris_context_options::join_timeout_ns, &iris_context_options::timeout_ns,
        &iris_context_options::connect_timeout_ns}) {
    iris_context_options options = Rank(0, 1);
    options.*time = -5;
    EXPECT_FAILS(iris_context_create(&options, &context), IRIS_INVALID_ARGUMENT, "=-5 is negative");
  }
  Objects o;
  o.context = Alone();
  ASSERT_OK(MakeObjects(&o));
  auto wanted = Sized<iris_allocate_options>();
  auto range = Sized<iris_allocation>();
  for (const iris_dtype dtype : {-1, 16, 1 << 30}) {
    wanted.dtype = dtype;
    EXPECT_FAILS(iris_allocate(o.context, nullptr, &wanted, &range), IRIS_INVALID_ARGUMENT,
                 absl::StrCat(dtype, " is no iris_dtype"));
  }
  wanted = Sized<iris_allocate_options>();
  wanted.n_dims = 3;
  EXPECT_FAILS(iris_allocate(o.context, nullptr, &wanted, &range), IRIS_INVALID_ARGUMENT,
               "3 dimensions is at null");
  const std::vector<uint64_t> shape(1000, 1);
  wanted.n_dims = 1000;
  wanted.shape = shape.data();
  EXPECT_FAILS(iris_allocate(o.context, nullptr, &wanted, &range), IRIS_INVALID_ARGUMENT,
               "16 are allowed");
  float x = 1, y = 2;
  const auto reduce = [&](iris_dtype dtype, iris_reduce_op op, int32_t variant) {
    return iris_all_reduce(o.comm, &x, &y, 1, dtype, op, o.stream, variant);
  };
  EXPECT_FAILS(reduce(0, 0, 0), IRIS_INVALID_ARGUMENT, "0 is no iris_dtype");
  EXPECT_FAILS(reduce(16, 0, 0), IRIS_INVALID_ARGUMENT, "16 is no iris_dtype");
  EXPECT_FAILS(reduce(-1, 0, 0), IRIS_INVALID_ARGUMENT, "-1 is no iris_dtype");
  EXPECT_FAILS(reduce(IRIS_F32, 5, 0), IRIS_INVALID_ARGUMENT, "5 is no iris_reduce_op");
  EXPECT_FAILS(reduce(IRIS_F32, -1, 0), IRIS_INVALID_ARGUMENT, "-1 is no iris_reduce_op");
  EXPECT_FAILS(reduce(IRIS_F32, 0, 200), IRIS_INVALID_ARGUMENT, "200 is no variant");
  EXPECT_FAILS(reduce(IRIS_F32, 0, 4), IRIS_INVALID_ARGUMENT, "4 is no variant");  // removed
  auto opened = Sized<iris_opened>();
  EXPECT_FAILS(iris_open_local(o.context, 1, "x", 1, &opened), IRIS_INVALID_ARGUMENT,
               "no rank 1 in a job of 1");
  EXPECT_FAILS(iris_open_local(o.context, 0, "x", -1, &opened), IRIS_INVALID_ARGUMENT,
               "-1 is negative");
  EXPECT_FAILS(iris_close_local(o.context, &opened), IRIS_INVALID_ARGUMENT, "has not opened it");
  opened.size = sizeof(opened) - 1;
  EXPECT_FAILS(iris_close_local(o.context, &opened), IRIS_INVALID_ARGUMENT, "iris_opened");
  opened.size = 3;
  EXPECT_FAILS(iris_open_local(o.context, 1, "x", 1, &opened), IRIS_INVALID_ARGUMENT,
               "iris_opened");
  wanted = Sized<iris_allocate_options>();
  wanted.bytes = 100;
  EXPECT_OK(iris_allocate_local(o.context, &wanted, &range));
  EXPECT_OK(iris_publish_local(o.context, &range, "once"));
  EXPECT_FAILS(iris_publish_local(o.context, &range, "twice"), IRIS_FAILED_PRECONDITION,
               "is published already, as 'once'");
  EXPECT_OK(iris_free(o.context, &range));
  EXPECT_FAILS(iris_free(o.context, &range), IRIS_INVALID_ARGUMENT, "no live allocation");
  EXPECT_FAILS(iris_barrier(o.context, nullptr, -1), IRIS_INVALID_ARGUMENT, "-1 is negative");
  EXPECT_FAILS(iris_broadcast(o.comm, &x, &y, 1, IRIS_F32, 9, o.stream, 0), IRIS_INVALID_ARGUMENT,
               "rank 9");
  int64_t pid = 0;
  EXPECT_FAILS(iris_context_peer_pid(o.context, 1, &pid), IRIS_INVALID_ARGUMENT,
               "no rank 1 in a job of 1");
  void* memory = nullptr;
  EXPECT_FAILS(iris_malloc_device(o.context, 0, &memory), IRIS_INVALID_ARGUMENT, "0 bytes");
#if !defined(IRIS_ASAN) && !defined(IRIS_TSAN)  // they end the process
  for (const uint64_t bytes : {~uint64_t{0}, ~uint64_t{0} - 200, uint64_t{1} << 63}) {
    EXPECT_FAILS(iris_malloc_device(o.context, bytes, &memory), IRIS_RESOURCE_EXHAUSTED,
                 absl::StrCat("there are no ", iris::base::SizeText(bytes), " free"));
    EXPECT_FAILS(iris_malloc_host(o.context, bytes, &memory), IRIS_RESOURCE_EXHAUSTED, "free");
  }
#endif
  EXPECT_OK(iris_context_destroy(o.context));
}

// The heap is smaller than the room that it can grow into: what lies there is not mapped, and a
// kernel that went there would end its process.
TEST_F(AbiTest, ABufferThatReachesBeyondTheHeapIsRefused) {
  Objects o;
  o.context = Alone();
  ASSERT_OK(MakeObjects(&o));
  auto wanted = Sized<iris_allocate_options>();
  wanted.bytes = kMiB;
  auto range = Sized<iris_allocation>();
  ASSERT_OK(iris_allocate(o.context, nullptr, &wanted, &range));
  auto info = Sized<iris_context_info>();
  ASSERT_OK(iris_context_get_info(o.context, &info));
  const uint64_t left = info.heap_bytes - range.offset_bytes;
  ASSERT_LT(left + 4096, info.stride_bytes - range.offset_bytes);
  std::vector<uint8_t> other(left + 1);
  const char* const kBeyond = "reaches beyond the part of it that is mapped";
  const auto gather = [&](uint64_t count) {
    return iris_all_gather(o.comm, range.address, other.data(), count, IRIS_U8, o.stream, 0);
  };
  EXPECT_OK(gather(left));
  EXPECT_FAILS(gather(left + 1), IRIS_INVALID_ARGUMENT, kBeyond);
  EXPECT_FAILS(iris_all_gather(o.comm, other.data(), range.address, left + 1, IRIS_U8, o.stream, 0),
               IRIS_INVALID_ARGUMENT, kBeyond);
  iris_norm norm = SmallNorm();
  norm.in = other.data();
  norm.out = static_cast<char*>(range.address) + left - 4;  // the last element of the heap
  EXPECT_FAILS(iris_norm_launch(o.comm, &norm, o.stream), IRIS_INVALID_ARGUMENT, kBeyond);
  // It is refused until the heap has grown.
  EXPECT_OK(iris_grow(o.context, kMiB));
  EXPECT_OK(gather(left + 1));
  EXPECT_OK(iris_comm_synchronize(o.comm, o.stream));
  EXPECT_OK(iris_context_destroy(o.context));
}

TEST_F(AbiTest, WhatIsWrongWithAMixtureOfExpertsIsNamed) {
  Objects o;
  o.context = Alone();
  ASSERT_OK(MakeObjects(&o));
  auto sizes = Sized<iris_moe_sizes>();
  const auto sizes_of = [&](const iris_moe_config& config, uint32_t n_members, uint32_t index = 0) {
    return iris_moe_get_sizes(o.context, n_members, index, &config, &sizes);
  };
  for (const uint32_t n_members : {0u, 65u, 1u << 31, ~0u}) {
    EXPECT_FAILS(sizes_of(Experts(), n_members), IRIS_INVALID_ARGUMENT, "1 to 64 members");
  }
  for (const uint32_t index : {4u, ~0u}) {
    EXPECT_FAILS(sizes_of(Experts(), 4, index), IRIS_INVALID_ARGUMENT, "no such member");
  }
  const struct {
    uint32_t iris_moe_config::*field;
    std::vector<uint32_t> values;
    const char* said;
  } numbers[] = {
      {&iris_moe_config::n_experts, {0, 4097, ~0u}, "n_experts is 1 to 4096"},
      {&iris_moe_config::top_k, {0, 33, ~0u}, "top_k is 1 to 32"},
      {&iris_moe_config::top_k, {5}, "more than there are experts"},
      {&iris_moe_config::hidden, {0, (1u << 20) + 1, ~0u}, "hidden is 1 to 1048576"},
      {&iris_moe_config::max_tokens, {0}, "max_tokens is at least 1"},
      {&iris_moe_config::max_tokens, {1u << 30, 1u << 31, ~0u}, "more than 2^31 - 1 rows"},
      {&iris_moe_config::capacity, {1u << 29, 1u << 30, ~0u}, "more than 2^31 - 1 rows"},
  };
  for (const auto& [field, values, said] : numbers) {
    for (const uint32_t value : values) {
      iris_moe_config config = Experts();
      config.*field = value;
      EXPECT_FAILS(sizes_of(config, 1), IRIS_INVALID_ARGUMENT, said);
    }
  }
  for (int32_t iris_moe_config::*const type :
       {&iris_moe_config::in_dtype, &iris_moe_config::row_dtype, &iris_moe_config::partial_dtype}) {
    for (const int32_t dtype : {-1, 16, 1 << 30}) {
      iris_moe_config config = Experts();
      config.*type = dtype;
      EXPECT_FAILS(sizes_of(config, 1), IRIS_INVALID_ARGUMENT,
                   absl::StrCat("is ", dtype, ", which is no iris_dtype"));
    }
  }
  // As large as it can be: all sizes are told as they are.
  iris_moe_config largest = Experts();
  largest.n_experts = largest.top_k = 1;
  largest.hidden = 1u << 20;
  largest.max_tokens = (1u << 31) - 1;
  ASSERT_OK(sizes_of(largest, 1));
  EXPECT_EQ(sizes.max_rows, (uint64_t{1} << 31) - 1);
  EXPECT_EQ(sizes.row_stride_bytes, uint64_t{4} << 20);
  EXPECT_GT(sizes.workspace_bytes, sizes.max_rows * sizes.row_stride_bytes);
  EXPECT_LT(sizes.workspace_bytes, uint64_t{1} << 54);

  // Every call, with what it must not have.
  const iris_moe_config config = Experts();
  ASSERT_OK(sizes_of(config, 1));
  auto wanted = Sized<iris_allocate_options>();
  auto range = Sized<iris_allocation>();
  wanted.bytes = sizes.workspace_bytes + 4096;
  ASSERT_OK(iris_allocate(o.context, nullptr, &wanted, &range));
  char* const heap = static_cast<char*>(range.address);
  std::vector<float> x(16 * 16), y(16 * 16);
  std::vector<int32_t> ids(16);
  auto dispatch = Sized<iris_moe_dispatch_call>();
  const auto put = [&] { return iris_moe_dispatch(o.comm, &config, &dispatch, o.stream); };
  dispatch.x = x.data();
  dispatch.ids = ids.data();
  dispatch.tokens = 8;
  dispatch.workspace = heap;
  for (const int32_t dtype : {-1, 16}) {
    dispatch.id_dtype = dtype;
    EXPECT_FAILS(put(), IRIS_INVALID_ARGUMENT, "no iris_dtype");
  }
  dispatch.id_dtype = IRIS_F32;
  EXPECT_FAILS(put(), IRIS_INVALID_ARGUMENT, "ids are of i32 or i64");
  dispatch.id_dtype = IRIS_I32;
  dispatch.tokens = 9;
  EXPECT_FAILS(put(), IRIS_INVALID_ARGUMENT, "more tokens than max_tokens");
  dispatch.tokens = 8;
  alignas(256) static char elsewhere[256];
  dispatch.workspace = elsewhere;
  EXPECT_FAILS(put(), IRIS_INVALID_ARGUMENT, "not in the symmetric heap");
  dispatch.workspace = heap + 8;
  EXPECT_FAILS(put(), IRIS_INVALID_ARGUMENT, "aligned to 256");
  dispatch.workspace = reinterpret_cast<void*>(~uint64_t{255});
  EXPECT_FAILS(put(), IRIS_INVALID_ARGUMENT, "not in the symmetric heap");
  dispatch.workspace = heap;
  dispatch.rows = reinterpret_cast<void*>(~uint64_t{255});
  EXPECT_FAILS(put(), IRIS_INVALID_ARGUMENT, "beyond the address space");
  dispatch.rows = heap + 256;
  EXPECT_FAILS(put(), IRIS_INVALID_ARGUMENT, "overlaps with the workspace");
  dispatch.rows = x.data();
  EXPECT_FAILS(put(), IRIS_INVALID_ARGUMENT, "rows: it overlaps with another buffer");
  dispatch.rows = nullptr;
  // Larger than what is left of the heap: other members would write into what is not there.
  iris_moe_config large = config;
  large.max_tokens = 1 << 16;
  large.hidden = 1 << 10;
  EXPECT_FAILS(iris_moe_dispatch(o.comm, &large, &dispatch, o.stream), IRIS_INVALID_ARGUMENT,
               "reaches beyond it");
  dispatch.size = 8;
  EXPECT_FAILS(put(), IRIS_INVALID_ARGUMENT, "iris_moe_dispatch_call: its size is 8");
  auto combine = Sized<iris_moe_combine_call>();
  combine.workspace = heap;
  combine.tokens = 8;
  combine.y = y.data();
  combine.out = x.data();
  combine.y_dtype = IRIS_F32;
  for (const int32_t dtype : {-1, 16}) {
    combine.out_dtype = dtype;
    EXPECT_FAILS(iris_moe_combine(o.comm, &config, &combine, o.stream), IRIS_INVALID_ARGUMENT,
                 "no iris_dtype");
  }
  combine.out_dtype = IRIS_I32;
  EXPECT_FAILS(iris_moe_combine(o.comm, &config, &combine, o.stream), IRIS_INVALID_ARGUMENT,
               "out is of f32, f16 or bf16");
  EXPECT_OK(iris_context_destroy(o.context));
}

TEST_F(AbiTest, WhatIsWrongWithANormIsNamed) {
  Objects o;
  o.context = Alone();
  ASSERT_OK(MakeObjects(&o));
  auto plan = Sized<iris_norm_plan>();
  const auto choose = [&](const std::function<void(iris_norm*)>& change) {
    iris_norm norm = SmallNorm();
    change(&norm);
    return iris_norm_choose(o.comm, &norm, &plan);
  };
  EXPECT_OK(choose([](iris_norm*) {}));
  const struct {
    std::function<void(iris_norm*)> change;
    const char* said;
  } wrong[] = {
      {[](iris_norm* n) { n->size = 8; }, "iris_norm: its size is 8"},
      {[](iris_norm* n) { n->operation = 16; }, "16 is no operation"},
      {[](iris_norm* n) { n->operation = -1; }, "-1 is no operation"},
      {[](iris_norm* n) { n->variant = -1; }, "-1 is no variant"},
      {[](iris_norm* n) { n->scaling = 1 << 30; }, "is no scaling"},
      {[](iris_norm* n) { n->in_dtype = 16; }, "in_dtype is 16"},
      {[](iris_norm* n) { n->out_dtype = -1; }, "out_dtype is -1"},
      {[](iris_norm* n) { n->weight_dtype = 1 << 30; }, "weight_dtype is"},
      {[](iris_norm* n) { n->in_dtype = 0; }, "f32, f16 or bf16"},
      {[](iris_norm* n) { n->hidden = 0; }, "hidden is at least 1"},
      {[](iris_norm* n) { n->hidden = ~uint64_t{0}; }, "at most 2^31 - 1"},
      {[](iris_norm* n) { n->rows = uint64_t{1} << 63; }, "at most 2^31 - 1"},
      {[](iris_norm* n) { n->rows = n->hidden = (uint64_t{1} << 31) - 1; }, "more than 2^42"},
      {[](iris_norm* n) { n->epsilon = -1; }, "epsilon"},
      {[](iris_norm* n) { n->epsilon = std::nanf(""); }, "epsilon"},
      {[](iris_norm* n) { n->weight_offset = std::nanf(""); }, "weight_offset"},
  };
  for (const auto& [change, said] : wrong) {
    EXPECT_FAILS(choose(change), IRIS_INVALID_ARGUMENT, said);
  }
  iris_norm norm = SmallNorm();
  std::vector<float> x(64);
  norm.in = x.data();
  norm.out = reinterpret_cast<void*>(~uint64_t{63});
  EXPECT_FAILS(iris_norm_launch(o.comm, &norm, o.stream), IRIS_INVALID_ARGUMENT,
               "beyond the address space");
  EXPECT_OK(iris_context_destroy(o.context));
}

TEST_F(AbiTest, NothingOfAContextOutlivesIt) {
  Objects o;
  o.context = Alone();
  ASSERT_OK(MakeObjects(&o));
  iris_context* const other = Alone();
  ASSERT_OK(iris_context_destroy(o.context));
  EXPECT_FAILS(iris_context_destroy(o.context), IRIS_INVALID_ARGUMENT, "was destroyed");
  EXPECT_FAILS(iris_stream_destroy(o.stream), IRIS_INVALID_ARGUMENT, "was destroyed");
  EXPECT_FAILS(iris_event_destroy(o.event), IRIS_INVALID_ARGUMENT, "was destroyed");
  EXPECT_FAILS(iris_graph_destroy(o.graph), IRIS_INVALID_ARGUMENT, "was destroyed");
  EXPECT_FAILS(iris_comm_destroy(o.comm), IRIS_INVALID_ARGUMENT, "was destroyed");
  EXPECT_FAILS(iris_team_destroy(other, o.team), IRIS_INVALID_ARGUMENT, "was destroyed");
  EXPECT_OK(iris_context_health(other));
  EXPECT_OK(iris_context_destroy(other));
}

TEST_F(AbiTest, AContextThatLeftIsKnownAndFails) {
  Objects o;
  o.context = Alone();
  ASSERT_OK(MakeObjects(&o));
  ASSERT_OK(iris_context_leave(o.context));
  EXPECT_FAILS(iris_barrier(o.context, nullptr, 0), IRIS_FAILED_PRECONDITION, "left the job");
  EXPECT_FAILS(iris_stream_synchronize(o.stream), IRIS_FAILED_PRECONDITION, "left the job");
  EXPECT_FAILS(iris_event_record(o.event, o.stream), IRIS_FAILED_PRECONDITION, "left the job");
  EXPECT_FAILS(iris_graph_launch(o.graph, o.stream), IRIS_FAILED_PRECONDITION, "left the job");
  EXPECT_FAILS(iris_comm_check(o.comm), IRIS_FAILED_PRECONDITION, "left the job");
  auto info = Sized<iris_context_info>();
  EXPECT_OK(iris_context_get_info(o.context, &info));
  EXPECT_OK(iris_stream_destroy(o.stream));
  EXPECT_OK(iris_context_destroy(o.context));
}

TEST_F(AbiTest, WhatWasDestroyedIsNotDestroyedAgain) {
  Objects o;
  o.context = Alone();
  ASSERT_OK(MakeObjects(&o));
  void* const handles[] = {o.comm, o.event, o.graph, o.stream};
  const char* const names[] = {"communicator", "event", "graph", "stream"};
  for (int i = 0; i < 4; ++i) {
    const auto destroy = DestroyCalls()[names[i]];
    EXPECT_OK(destroy(handles[i])) << names[i];
    EXPECT_FAILS(destroy(handles[i]), IRIS_INVALID_ARGUMENT, "was destroyed");
  }
  EXPECT_FAILS(iris_stream_synchronize(o.stream), IRIS_INVALID_ARGUMENT, "was destroyed");
  EXPECT_OK(iris_team_destroy(o.context, o.team));
  EXPECT_FAILS(iris_team_destroy(o.context, o.team), IRIS_INVALID_ARGUMENT, "was destroyed");
  EXPECT_OK(iris_context_destroy(o.context));
}

TEST_F(AbiTest, WhatIsOfAnotherContextIsRefused) {
  Objects a, b;
  a.context = Alone();
  b.context = Alone();
  ASSERT_OK(MakeObjects(&a));
  ASSERT_OK(MakeObjects(&b));
  auto info = Sized<iris_team_info>();
  iris_comm* comm = nullptr;
  EXPECT_FAILS(iris_team_get_info(a.context, b.team, &info), IRIS_INVALID_ARGUMENT,
               "belongs to another context");
  EXPECT_FAILS(iris_barrier(a.context, b.team, 0), IRIS_INVALID_ARGUMENT,
               "belongs to another context");
  EXPECT_FAILS(iris_team_destroy(a.context, b.team), IRIS_INVALID_ARGUMENT,
               "belongs to another context");
  EXPECT_FAILS(iris_comm_create(a.context, b.team, nullptr, &comm), IRIS_INVALID_ARGUMENT,
               "belongs to another context");
  EXPECT_OK(iris_barrier(b.context, b.team, 0));
  // So is a stream: its context would not wait for it before it unmaps the heap.
  float x = 1, y = 2;
  EXPECT_FAILS(iris_all_reduce(a.comm, &x, &y, 1, IRIS_F32, IRIS_SUM, b.stream, 0),
               IRIS_INVALID_ARGUMENT, "belong to different contexts");
  EXPECT_FAILS(iris_put_async(a.context, &x, &y, 4, 0, b.stream, nullptr), IRIS_INVALID_ARGUMENT,
               "belong to different contexts");
  EXPECT_FAILS(iris_graph_launch(a.graph, b.stream), IRIS_INVALID_ARGUMENT,
               "belong to different contexts");
  EXPECT_OK(iris_event_record(a.event, b.stream));
  EXPECT_OK(iris_event_wait(a.stream, a.event));
  EXPECT_OK(iris_stream_synchronize(a.stream));
  EXPECT_OK(iris_context_destroy(a.context));
  EXPECT_OK(iris_barrier(b.context, b.team, 0));
  EXPECT_OK(iris_context_destroy(b.context));
}

TEST_F(AbiTest, AnErrorIsOfTheThreadThatMadeTheCall) {
  iris_context* const context = Alone();
  EXPECT_FAILS(iris_barrier(context, nullptr, -7), IRIS_INVALID_ARGUMENT, "-7");
  std::string at_first = "?", after = "?";
  std::thread([&] {
    at_first = Message();
    (void)iris_barrier(context, nullptr, -8);
    after = Message();
  }).join();
  EXPECT_EQ(at_first, "");
  EXPECT_THAT(after, HasSubstr("-8"));
  EXPECT_THAT(Message(), HasSubstr("-7"));
  EXPECT_OK(iris_barrier(context, nullptr, 0));
  EXPECT_THAT(Message(), HasSubstr("-7")) << "of the last call that failed";
  EXPECT_OK(iris_context_destroy(context));
}

TEST_F(AbiTest, AValueIsOfTheThreadThatMadeTheCall) {
  iris_context* const context = Alone();
  const void* mine = nullptr;
  size_t n_mine = 0;
  ASSERT_OK(iris_broadcast_bytes(context, nullptr, "first", 5, 0, &mine, &n_mine));
  std::thread([&] {
    const void* theirs = nullptr;
    size_t n_theirs = 0;
    EXPECT_OK(iris_broadcast_bytes(context, nullptr, "second", 6, 0, &theirs, &n_theirs));
    EXPECT_EQ(std::string(static_cast<const char*>(theirs), n_theirs), "second");
  }).join();
  EXPECT_EQ(std::string(static_cast<const char*>(mine), n_mine), "first");
  EXPECT_OK(iris_context_destroy(context));
}

// One thread waits in a call of the communicator for a peer; another one's call is refused.
TEST_F(AbiTest, ASecondThreadOnACommunicatorIsRefused) {
  std::vector<std::thread> ranks;
  std::atomic<bool> refused{false};
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([this, r, &refused] {
      const iris_context_options options = Rank(r, 2);
      Objects o;
      ASSERT_OK(iris_context_create(&options, &o.context));
      ASSERT_OK(MakeObjects(&o));
      if (r == 0) {
        ASSERT_OK(iris_comm_barrier(o.comm, o.stream));
        std::thread waits([&] {
          iris_code code = IRIS_FAILED_PRECONDITION;
          while (code == IRIS_FAILED_PRECONDITION) code = iris_comm_synchronize(o.comm, o.stream);
          EXPECT_OK(code);
        });
        const absl::Time deadline = absl::Now() + absl::Seconds(40);
        while (absl::Now() < deadline && iris_comm_check(o.comm) == IRIS_OK) {
          absl::SleepFor(absl::Milliseconds(1));
        }
        EXPECT_THAT(Message(), HasSubstr("another thread is in a call of this communicator"));
        refused = true;
        waits.join();
        EXPECT_OK(iris_comm_check(o.comm));
        EXPECT_FAILS(iris_group_end(o.comm), IRIS_FAILED_PRECONDITION,
                     "begin it with iris_group_start()");
      } else {
        while (!refused) absl::SleepFor(absl::Milliseconds(1));
        EXPECT_OK(iris_comm_barrier(o.comm, o.stream));
        EXPECT_OK(iris_comm_synchronize(o.comm, o.stream));
      }
      EXPECT_OK(iris_barrier(o.context, nullptr, 0));
      EXPECT_OK(iris_context_destroy(o.context));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Whatever is under way when a context is destroyed ends in order, and what comes later is refused.
TEST_F(AbiTest, AContextIsDestroyedWhileOthersUseIt) {
  for (int round = 0; round < 5; ++round) {
    Objects o;
    o.context = Alone();
    ASSERT_OK(MakeObjects(&o));
    std::atomic<bool> go_on{true};
    std::atomic<int> n_calls{0}, wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        uint64_t to = 0, from = 1;
        while (go_on) {
          iris_stream* stream = nullptr;
          iris_event* event = nullptr;
          uint64_t ns = 0;
          for (const iris_code code :
               {iris_stream_create(o.context, &stream), iris_event_create(o.context, &event),
                iris_copy_async(&to, &from, 8, stream), iris_event_record(o.event, o.stream),
                iris_event_record(event, stream), iris_event_wait(o.stream, o.event),
                iris_event_elapsed(o.event, event, &ns), iris_graph_launch(o.graph, o.stream),
                iris_stream_synchronize(o.stream), iris_stream_synchronize(stream),
                iris_context_health(o.context), iris_stream_destroy(stream),
                iris_event_destroy(event)}) {
            const bool right = code == IRIS_OK || code == IRIS_INVALID_ARGUMENT ||
                               code == IRIS_FAILED_PRECONDITION;
            if (!right) ++wrong;
          }
          ++n_calls;
        }
      });
    }
    while (n_calls < 20) std::this_thread::yield();
    EXPECT_OK(iris_context_destroy(o.context));
    const int before = n_calls;
    while (n_calls < before + 20) std::this_thread::yield();
    go_on = false;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_FAILS(iris_stream_synchronize(o.stream), IRIS_INVALID_ARGUMENT, "was destroyed");
  }
}

TEST_F(AbiTest, NamesOfCodes) {
  EXPECT_STREQ(iris_code_name(IRIS_OK), "OK");
  EXPECT_STREQ(iris_code_name(IRIS_UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_STREQ(iris_code_name(17), "UNKNOWN");
  EXPECT_STREQ(iris_code_name(-1), "UNKNOWN");
  EXPECT_THAT(iris_version_string(),
              HasSubstr(absl::StrCat(IRIS_VERSION_MAJOR, ".", IRIS_VERSION_MINOR, ".")));
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(
      argc, argv, {{"split", iris::Split}, {"fork", iris::Fork}, {"late", iris::Late}});
}
