/* What a program of the previous minor version does with the C API: each function once, with structs as its header
 * has them and a guard behind each. Two ranks; prints one line for each. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "iris/c_api.h"

#define STOP(...)                 \
  do {                            \
    fprintf(stderr, __VA_ARGS__); \
    exit(1);                      \
  } while (0)
#define TRY(call)                                                                                       \
  do {                                                                                                  \
    if ((call) != IRIS_OK) STOP("line %d: %s: %s\n", __LINE__, #call, iris_error_message());            \
  } while (0)
#define CHECK(condition)                                                  \
  do {                                                                    \
    if (!(condition)) STOP("line %d: not so: %s\n", __LINE__, #condition); \
  } while (0)

/* A struct whose size is set, and bytes behind it that the library must not write. */
#define GUARDED(type, name)                \
  struct {                                 \
    type known;                            \
    unsigned char guard[64];               \
  } name;                                  \
  memset(&name, 0, sizeof(name));          \
  memset(name.guard, 0xa5, sizeof(name.guard)); \
  name.known.size = sizeof(type)
#define CHECK_GUARD(name) \
  for (size_t guard_i = 0; guard_i < sizeof(name.guard); ++guard_i) CHECK(name.guard[guard_i] == 0xa5)

enum { kElements = 1000, kRanks = 2 };

static iris_context* context;
static iris_stream* stream;
static uint32_t me, other;

static int32_t* Allocate(uint64_t elements, const char* name) {
  GUARDED(iris_allocate_options, options);
  const uint64_t shape[1] = {elements};
  options.known.bytes = elements * sizeof(int32_t);
  options.known.name = name;
  options.known.dtype = IRIS_I32;
  options.known.n_dims = 1;
  options.known.shape = shape;
  GUARDED(iris_allocation, place);
  TRY(iris_allocate(context, NULL, &options.known, &place.known));
  CHECK_GUARD(options);
  CHECK_GUARD(place);
  CHECK(place.known.size == sizeof(iris_allocation));
  CHECK(place.known.bytes >= options.known.bytes);
  return place.known.address;
}

static void Write(int32_t* to, int32_t first, uint64_t elements) {
  int32_t* const values = malloc(elements * sizeof(int32_t));
  for (uint64_t i = 0; i < elements; ++i) values[i] = first + (int32_t)i;
  TRY(iris_copy_async(to, values, elements * sizeof(int32_t), stream));
  TRY(iris_stream_synchronize(stream));
  free(values);
}

static int32_t Read(const int32_t* from) {
  int32_t value = 0;
  TRY(iris_copy_async(&value, from, sizeof(value), stream));
  TRY(iris_stream_synchronize(stream));
  return value;
}

static void Create(void) {
  GUARDED(iris_launcher, launcher);
  TRY(iris_launcher_read(&launcher.known));
  CHECK_GUARD(launcher);
  CHECK(launcher.known.n_ranks == kRanks);
  CHECK(strcmp(launcher.known.name, "iris") == 0);

  GUARDED(iris_context_options, options);
  iris_context_options_init(&options.known);
  CHECK_GUARD(options);
  CHECK(options.known.rank == -1 && options.known.header_version == IRIS_VERSION);
  options.known.heap_bytes = 64 << 20;
  options.known.timeout_ns = INT64_C(60000000000);
  TRY(iris_context_create(&options.known, &context));

  GUARDED(iris_context_info, info);
  TRY(iris_context_get_info(context, &info.known));
  CHECK_GUARD(info);
  CHECK(info.known.n_ranks == kRanks && info.known.rank == (uint32_t)launcher.known.rank);
  CHECK(info.known.heap_bytes >= options.known.heap_bytes);
  CHECK(strcmp(info.known.job, launcher.known.job) == 0 && strcmp(info.known.backend, "emu") == 0);
  me = info.known.rank;
  other = 1 - me;

  GUARDED(iris_create_timings, timings);
  TRY(iris_context_get_timings(context, &timings.known));
  CHECK_GUARD(timings);
  CHECK(timings.known.join_ns > 0);
  TRY(iris_context_health(context));
  int64_t pid = 0;
  TRY(iris_context_peer_pid(context, other, &pid));
  CHECK(pid > 0);
  unsigned char device[64];
  TRY(iris_context_get_device(context, device, sizeof(device)));
}

static void UseStreams(void) {
  TRY(iris_stream_create(context, &stream));
  void* native = NULL;
  int32_t device = -1, idle = 0;
  TRY(iris_stream_native(stream, &native, &device));
  iris_stream* wrapped = NULL;
  TRY(iris_stream_wrap(context, native, &wrapped));
  TRY(iris_stream_destroy(wrapped));

  void *on_device = NULL, *on_host = NULL;
  TRY(iris_malloc_device(context, 64, &on_device));
  TRY(iris_malloc_host(context, 64, &on_host));
  TRY(iris_fill_async(on_device, 7, 64, stream));
  TRY(iris_copy_async(on_host, on_device, 64, stream));
  TRY(iris_stream_synchronize(stream));
  TRY(iris_stream_idle(stream, &idle));
  CHECK(idle && ((unsigned char*)on_host)[63] == 7);

  iris_graph* graph = NULL;
  TRY(iris_capture_begin(stream));
  TRY(iris_fill_async(on_host, 8, 64, stream));
  TRY(iris_capture_end(stream, &graph));
  iris_event *start = NULL, *end = NULL;
  TRY(iris_event_create(context, &start));
  TRY(iris_event_create(context, &end));
  TRY(iris_event_record(start, stream));
  TRY(iris_graph_launch(graph, stream));
  TRY(iris_event_record(end, stream));
  TRY(iris_event_wait(stream, end));
  TRY(iris_stream_synchronize(stream));
  uint64_t elapsed_ns = 0;
  TRY(iris_event_elapsed(start, end, &elapsed_ns));
  CHECK(((unsigned char*)on_host)[0] == 8);
  TRY(iris_event_destroy(start));
  TRY(iris_event_destroy(end));
  TRY(iris_graph_destroy(graph));
  TRY(iris_free_device(context, on_device));
  TRY(iris_free_host(context, on_host));
}

static void UseTeams(void) {
  const uint32_t ranks[kRanks] = {1, 0};
  iris_team* team = NULL;
  TRY(iris_team_create(context, NULL, ranks, kRanks, &team));
  GUARDED(iris_team_info, info);
  TRY(iris_team_get_info(context, team, &info.known));
  CHECK_GUARD(info);
  CHECK(info.known.n_ranks == kRanks && info.known.ranks[0] == 1 && info.known.index == (int32_t)other);
  unsigned char device[64];
  TRY(iris_team_get_device(context, team, device, sizeof(device)));
  TRY(iris_barrier(context, team, 0));
  const void* told = NULL;
  size_t told_bytes = 0;
  TRY(iris_broadcast_bytes(context, team, me == 1 ? "from 1" : NULL, me == 1 ? 7 : 0, 1, &told, &told_bytes));
  CHECK(told_bytes == 7 && strcmp(told, "from 1") == 0);
  TRY(iris_team_destroy(context, team));
  TRY(iris_team_split(context, NULL, (int32_t)me, 0, &team));
  TRY(iris_team_get_info(context, team, &info.known));
  CHECK(info.known.n_ranks == 1);
  TRY(iris_team_destroy(context, team));
}

/* A put with a signal, and a get. */
static void UseHeap(void) {
  int32_t* const words = Allocate(kElements, "words");
  int32_t* const landing = Allocate(kElements, "landing");
  uint32_t rank = 99;
  uint64_t offset_bytes = 0;
  TRY(iris_locate(context, words, &rank, &offset_bytes));
  CHECK(rank == me);
  TRY(iris_prepare_signals(context));
  TRY(iris_fill_async(landing, 0, kElements * sizeof(int32_t), stream));
  Write(words, 1000 * (int32_t)me, kElements);
  TRY(iris_barrier(context, NULL, 0));
  GUARDED(iris_signal, signal);
  signal.known.word = (uint64_t*)landing;
  signal.known.value = 5;
  signal.known.op = IRIS_SIGNAL_ADD;
  TRY(iris_put_async(context, landing + 10, words, 100 * sizeof(int32_t), other, stream, &signal.known));
  TRY(iris_stream_synchronize(stream));
  TRY(iris_barrier(context, NULL, 0));
  CHECK_GUARD(signal);
  CHECK(Read(landing) == 5 && Read(landing + 109) == 1000 * (int32_t)other + 99);
  TRY(iris_get_async(context, landing + 200, words, 100 * sizeof(int32_t), other, stream, NULL));
  CHECK(Read(landing + 299) == 1000 * (int32_t)other + 99);
  TRY(iris_grow(context, 1 << 20));
  TRY(iris_barrier(context, NULL, 0));
}

static void UseCollectives(void) {
  GUARDED(iris_comm_options, options);
  options.known.name = "sums";
  iris_comm* comm = NULL;
  TRY(iris_comm_create(context, NULL, &options.known, &comm));
  CHECK_GUARD(options);
  int32_t* const in = Allocate(2 * kElements, "in");
  int32_t* const out = Allocate(2 * kElements, "out");
  const int32_t mine = 10 * (int32_t)me, theirs = 10 * (int32_t)other;
  Write(in, mine, 2 * kElements);
  TRY(iris_all_reduce(comm, in, out, kElements, IRIS_I32, IRIS_SUM, stream, 0));
  CHECK(Read(out + 1) == 12);
  TRY(iris_reduce_scatter(comm, in, out, kElements, IRIS_I32, IRIS_MAX, stream, 0));
  CHECK(Read(out) == 10 + (int32_t)me * kElements);
  TRY(iris_reduce(comm, in, out, kElements, IRIS_I32, IRIS_PROD, 1, stream, 0));
  CHECK(me != 1 || Read(out + 2) == 24);
  TRY(iris_all_gather(comm, in, out, kElements, IRIS_I32, stream, 0));
  CHECK(Read(out + kElements) == 10);
  TRY(iris_gather(comm, in, out, kElements, IRIS_I32, 0, stream, 0));
  CHECK(me != 0 || Read(out + kElements + 1) == 11);
  TRY(iris_scatter(comm, in, out, kElements, IRIS_I32, 1, stream, 0));
  CHECK(Read(out) == 10 + (int32_t)me * kElements);
  TRY(iris_all_to_all(comm, in, out, kElements, IRIS_I32, stream, 0));
  CHECK(Read(out + other * kElements) == theirs + (int32_t)me * kElements);
  const uint64_t counts[kRanks] = {10, 10}, offsets[kRanks] = {0, 10};
  TRY(iris_all_to_all_v(comm, in, counts, offsets, out, counts, offsets, kRanks, IRIS_I32, stream));
  CHECK(Read(out + 10 * other) == theirs + 10 * (int32_t)me);
  TRY(iris_broadcast(comm, in, out, kElements, IRIS_I32, 1, stream, 0));
  CHECK(Read(out) == 10);
  if (me == 0) {
    TRY(iris_send(comm, in, kElements, IRIS_I32, 1, stream));
  } else {
    TRY(iris_recv(comm, out, kElements, IRIS_I32, 0, stream));
    CHECK(Read(out + 3) == 3);
  }
  TRY(iris_comm_barrier(comm, stream));
  TRY(iris_comm_synchronize(comm, stream));
  TRY(iris_comm_check(comm));
  const uint64_t* failed = NULL;
  TRY(iris_comm_error_word(comm, &failed));
  TRY(iris_comm_reset(comm));
  TRY(iris_comm_release(comm));
  TRY(iris_comm_destroy(comm));
}

int main(void) {
  CHECK(iris_version() >= IRIS_VERSION && strlen(iris_version_string()) > 0);
  CHECK(strcmp(iris_code_name(IRIS_ABORTED), "ABORTED") == 0);
  CHECK(iris_barrier(NULL, NULL, 0) == IRIS_INVALID_ARGUMENT && strlen(iris_error_message()) > 0);
  Create();
  UseStreams();
  UseTeams();
  UseHeap();
  UseCollectives();
  GUARDED(iris_allocate_options, word);
  word.known.bytes = 64;
  GUARDED(iris_allocation, place);
  TRY(iris_allocate(context, NULL, &word.known, &place.known));
  TRY(iris_free(context, &place.known));
  TRY(iris_stream_destroy(stream));
  TRY(iris_barrier(context, NULL, 0));
  TRY(iris_context_leave(context));
  TRY(iris_context_destroy(context));
  printf("rank %u used all of %d.%d\n", me, IRIS_VERSION_MAJOR, IRIS_VERSION_MINOR);
  return 0;
}
