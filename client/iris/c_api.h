/* The C API of Iris: all that libiris.so exports.
 *
 *   iris_context_options options;
 *   iris_context_options_init(&options);
 *   options.heap_bytes = 1 << 30;
 *   iris_context* context;
 *   if (iris_context_create(&options, &context) != IRIS_OK) {
 *     fprintf(stderr, "%s\n", iris_error_message());
 *     return 1;
 *   }
 *   iris_barrier(context, NULL, 0);
 *   iris_context_destroy(context);
 *
 * Programs in C++ include <iris/context.h> and the other headers in C++, which call these functions
 * and document them in full: iris_allocate is Context::Allocate, with IRIS_ABORTED for kAborted.
 *
 * Errors. A function that may fail returns an iris_code; IRIS_OK is 0. iris_error_message() says
 * what failed, on what, and what to do, for the calling thread's last call that failed. A call that
 * fails changes none of its arguments, and no call throws.
 *
 * Handles (iris_context, iris_team, iris_stream, ...) are numbers and not addresses: a call with a
 * handle that was destroyed, was never made, or is of another kind returns IRIS_INVALID_ARGUMENT. A
 * handle stays valid as long as calls on other threads use it. Objects that belong to a context
 * (teams, streams, communicators) end with the context, and are used only with objects of the same
 * context; only an event may connect streams of two contexts.
 *
 * Structs begin with their size in the caller's header: set it to sizeof, or call the function that
 * is named after the struct and ends in _init. A library with more fields treats the missing ones
 * as left out. A library with fewer fields accepts the struct if the fields that it lacks are zero,
 * and returns an error otherwise.
 *
 * Strings are in UTF-8 and end with a zero; null means left out. Times are nanoseconds. Addresses
 * of the heap are those of this process. Functions are thread-safe unless they say otherwise; those
 * marked collective are called by all ranks of the team, in the same order.
 *
 * Versions. IRIS_VERSION is this header's. A program that was built with an older header of the
 * same major version works with a newer library; otherwise iris_context_create returns an error.
 */
#ifndef IRIS_C_API_H_
#define IRIS_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IRIS_VERSION_MAJOR 0
#define IRIS_VERSION_MINOR 2
#define IRIS_VERSION (IRIS_VERSION_MAJOR * 1000 + IRIS_VERSION_MINOR)

/* Version of the layout of the structs that kernels get. Kernels are compiled with the same one. */
#define IRIS_DEVICE_ABI 1

#define IRIS_EXPORT __attribute__((visibility("default")))

/* Kinds of errors, with the numbers of gRPC and of iris::StatusCode in <iris/status_code.h>. */
typedef int32_t iris_code;
enum {
  IRIS_OK = 0,
  IRIS_CANCELLED = 1,
  IRIS_UNKNOWN = 2,
  IRIS_INVALID_ARGUMENT = 3,
  IRIS_DEADLINE_EXCEEDED = 4,
  IRIS_NOT_FOUND = 5,
  IRIS_ALREADY_EXISTS = 6,
  IRIS_PERMISSION_DENIED = 7,
  IRIS_RESOURCE_EXHAUSTED = 8,
  IRIS_FAILED_PRECONDITION = 9,
  IRIS_ABORTED = 10,
  IRIS_OUT_OF_RANGE = 11,
  IRIS_UNIMPLEMENTED = 12,
  IRIS_INTERNAL = 13,
  IRIS_UNAVAILABLE = 14,
  IRIS_DATA_LOSS = 15,
  IRIS_UNAUTHENTICATED = 16
};

/* Types of elements, with the numbers of iris::DType in <iris/dtype.h>. */
typedef int32_t iris_dtype;
enum {
  IRIS_DTYPE_NONE = 0,
  IRIS_F32 = 1,
  IRIS_F64 = 2,
  IRIS_F16 = 3,
  IRIS_BF16 = 4,
  IRIS_I32 = 5,
  IRIS_I64 = 6,
  IRIS_U8 = 7,
  IRIS_I8 = 8,
  IRIS_I16 = 9,
  IRIS_U16 = 10,
  IRIS_U32 = 11,
  IRIS_U64 = 12,
  IRIS_BOOL = 13,
  IRIS_F8E4M3 = 14,
  IRIS_F8E5M2 = 15
};

typedef int32_t iris_reduce_op;
enum { IRIS_SUM = 0, IRIS_PROD = 1, IRIS_MIN = 2, IRIS_MAX = 3, IRIS_AVG = 4 };

/* The change that a signal makes to its word. */
typedef int32_t iris_signal_op;
enum { IRIS_SIGNAL_SET = 0, IRIS_SIGNAL_ADD = 1 };

typedef struct iris_context iris_context;
typedef struct iris_team iris_team;
typedef struct iris_stream iris_stream;
typedef struct iris_event iris_event;
typedef struct iris_graph iris_graph;
typedef struct iris_comm iris_comm;

/* Errors and versions. */

/* Returns the message of this thread's last failed call; "" if none has failed. The text is valid
 * until the thread's next call. It names functions as this header does, with parentheses, so that
 * bindings for other languages can replace these names by their own. */
IRIS_EXPORT const char* iris_error_message(void);
/* Returns "DEADLINE_EXCEEDED" and so on; "UNKNOWN" for other numbers. */
IRIS_EXPORT const char* iris_code_name(iris_code code);
/* Return IRIS_VERSION of the loaded library, and the same as text: "0.2.0". */
IRIS_EXPORT uint32_t iris_version(void);
IRIS_EXPORT const char* iris_version_string(void);

/* Launchers: the environment says which rank of which job a process is. */

typedef struct iris_launcher {
  size_t size;
  int32_t rank;
  int32_t n_ranks;
  int32_t local_rank;
  int32_t n_local; /* ranks of this node; 0: not known, which means all */
  char name[32];   /* "iris", "torchrun", "openmpi", "mpich", "pmix", "slurm" or "none" */
  char job[160];
} iris_launcher;

/* Reads the environment. IRIS_INVALID_ARGUMENT names the variable that is wrong or missing. */
IRIS_EXPORT iris_code iris_launcher_read(iris_launcher* out);

/* Contexts. */

typedef struct iris_context_options {
  size_t size;
  uint32_t header_version; /* IRIS_VERSION */
  uint32_t device_abi;     /* IRIS_DEVICE_ABI; 0: the program has no kernels of its own */
  const char* kernels;     /* the backend that the program's kernels are compiled for, or null */
  /* Fields that are left out (null, 0, a rank of -1) are read from the environment, as
   * iris::ContextOptions says. */
  const char* job;
  int32_t rank;
  int32_t n_ranks;
  int32_t local_rank;
  int32_t prealloc;        /* not 0: reserve all pages now */
  uint64_t heap_bytes;     /* per rank; 1 GiB by default */
  uint64_t max_heap_bytes; /* address space to grow into; 0: four times heap_bytes */
  const char* device_uuid; /* null: device number local_rank mod the number of devices */
  const char* runtime_dir; /* null: IRIS_RUNTIME_DIR, else /run/iris, else $XDG_RUNTIME_DIR/iris */
  int64_t join_timeout_ns; /* 0: 60 s */
  int64_t timeout_ns;      /* of every other wait, on host and device; 0: 60 s */
  int64_t connect_timeout_ns; /* how long to retry while no irisd answers; 0: 2 s */
  /* Of a job with ranks on several nodes, as iris::ContextOptions says. */
  int32_t n_local; /* ranks on this node; 0: left out */
  int32_t reserved;
  const char* rendezvous; /* HOST:PORT of the node of rank 0; else irisd's network.etcd or PMIx */
  const char* secret;     /* null: IRIS_JOB_SECRET, else that of the irisds */
} iris_context_options;
IRIS_EXPORT void iris_context_options_init_sized(iris_context_options* options, size_t size);
/* Leaves out every field but header_version. The macro evaluates `options` twice. */
#define iris_context_options_init(options)                                   \
  (iris_context_options_init_sized((options), sizeof(iris_context_options)), \
   (void)((options)->header_version = IRIS_VERSION))

/* Joins the job as iris::Context::Create does. Collective over the job's ranks.
 * IRIS_FAILED_PRECONDITION also if the process is a forked child. */
IRIS_EXPORT iris_code iris_context_create(const iris_context_options* options, iris_context** out);
/* Leaves the job and unmaps the heaps. Not collective: peers that wait get IRIS_ABORTED. */
IRIS_EXPORT iris_code iris_context_destroy(iris_context* context);
/* Leaves the job as iris::Context::Leave does. The handle stays, and later calls with it fail. */
IRIS_EXPORT iris_code iris_context_leave(iris_context* context);

typedef struct iris_context_info {
  size_t size;
  uint32_t rank;
  uint32_t n_ranks;
  uint64_t job_id;
  uint64_t epoch;
  uint32_t device_index;     /* irisd's number of the device; this process may have another */
  uint32_t ranks_per_device; /* on the device that most ranks of the job share */
  uint64_t heap_bytes;       /* grows */
  uint64_t stride_bytes;
  uint64_t base;        /* address of rank 0's heap in this process, or where it would be */
  int32_t same_address; /* not 0: addresses mean the same on every rank */
  uint32_t reserved;
  const char* job; /* like the other strings, valid until the context is destroyed */
  const char* device_uuid;
  const char* backend;  /* of the heap's memory: "emu", or the name of a GPU driver */
  uint32_t first_local; /* first rank of this node */
  uint32_t n_local;     /* ranks of this node, which are consecutive */
} iris_context_info;
IRIS_EXPORT iris_code iris_context_get_info(iris_context* context, iris_context_info* out);

/* Durations of the steps of iris_context_create, as in iris::CreateTimings. */
typedef struct iris_create_timings {
  size_t size;
  int64_t connect_ns;
  int64_t device_ns;
  int64_t join_ns;
  int64_t create_ns;
  int64_t export_ns;
  int64_t map_ns;
  int64_t import_ns;
  int64_t map_memory_ns;
  int64_t set_access_ns;
  int64_t commit_ns;
} iris_create_timings;
IRIS_EXPORT iris_code iris_context_get_timings(iris_context* context, iris_create_timings* out);

/* Returns IRIS_OK while every rank is alive and none has left; afterwards IRIS_ABORTED. */
IRIS_EXPORT iris_code iris_context_health(iris_context* context);
IRIS_EXPORT iris_code iris_context_peer_pid(iris_context* context, uint32_t rank, int64_t* out);

/* Writes the first `bytes` bytes of an iris::DeviceContext (<iris/types.h>), for kernels. `bytes`
 * is the size of the struct in the caller's header. */
IRIS_EXPORT iris_code iris_context_get_device(iris_context* context, void* device_context,
                                              size_t bytes);

/* Finds the rank and the offset of an address. IRIS_INVALID_ARGUMENT if it is in no heap. */
IRIS_EXPORT iris_code iris_locate(iris_context* context, const void* address, uint32_t* rank,
                                  uint64_t* offset_bytes);

/* Sets *out to 1 if the heap of `rank` is mapped here, because it is on this node or on one that
 * shares a fabric with it; else to 0. */
IRIS_EXPORT iris_code iris_context_reaches(iris_context* context, uint32_t rank, int32_t* out);

/* Teams: ordered sets of ranks. A null team is the world. */

typedef struct iris_team_info {
  size_t size;
  uint32_t id;
  int32_t index; /* of this rank; -1: not a member */
  uint32_t n_ranks;
  uint32_t reserved;
  const uint32_t* ranks; /* world ranks in team order; valid as long as the team */
} iris_team_info;
IRIS_EXPORT iris_code iris_team_get_info(iris_context* context, iris_team* team,
                                         iris_team_info* out);
/* Writes the first `bytes` bytes of an iris::DeviceTeam, for kernels. */
IRIS_EXPORT iris_code iris_team_get_device(iris_context* context, iris_team* team,
                                           void* device_team, size_t bytes);
/* Makes a team of the listed world ranks, as iris::Context::CreateTeam. */
IRIS_EXPORT iris_code iris_team_create(iris_context* context, iris_team* parent,
                                       const uint32_t* ranks, uint32_t n_ranks, iris_team** out);
/* Makes a team of the ranks that give the same color, as iris::Context::Split. */
IRIS_EXPORT iris_code iris_team_split(iris_context* context, iris_team* parent, int32_t color,
                                      int32_t key, iris_team** out);
/* Give the team of this node's ranks, and that of the ranks with this one's place on each node, as
 * iris::Context::local and rail. The first call of each is collective over the world. */
IRIS_EXPORT iris_code iris_team_local(iris_context* context, iris_team** out);
IRIS_EXPORT iris_code iris_team_rail(iris_context* context, iris_team** out);
/* Destroys a team. Collective over the team. A rank outside the team only releases its handle. */
IRIS_EXPORT iris_code iris_team_destroy(iris_context* context, iris_team* team);

/* The symmetric heap. */

typedef struct iris_allocate_options {
  size_t size;
  uint64_t bytes;
  uint64_t alignment_bytes; /* a power of two; 0: 1,024 */
  const char* name;         /* null, or as in iris::AllocateOptions */
  iris_dtype dtype;         /* shown by iris-ctl; must agree between ranks */
  uint32_t n_dims;
  const uint64_t* shape; /* n_dims numbers */
} iris_allocate_options;

/* A range of the heap, as a plain value. iris_free frees the range. */
typedef struct iris_allocation {
  size_t size;
  uint64_t offset_bytes; /* the same on every rank that allocated it */
  uint64_t bytes;
  void* address;    /* of this rank's copy */
  uint32_t team_id; /* the team that must free it; a number of its own if one rank allocated it */
  /* 1: nobody has had this rank's memory before, so it is zero, which iris_allocate says; else 0 */
  uint32_t fresh;
} iris_allocation;

/* Allocates a range at one offset of all heaps, with the errors of iris::Context::Allocate.
 * Collective over the team. */
IRIS_EXPORT iris_code iris_allocate(iris_context* context, iris_team* team,
                                    const iris_allocate_options* options, iris_allocation* out);
/* Frees a range, collectively unless one rank allocated it: see iris::Context::Free. */
IRIS_EXPORT iris_code iris_free(iris_context* context, const iris_allocation* allocation);
/* Adds at least `bytes` bytes to every heap. Collective over all ranks. */
IRIS_EXPORT iris_code iris_grow(iris_context* context, uint64_t bytes);

/* Allocates a range of this rank's heap only, as iris::Context::AllocateLocal. Not collective. */
IRIS_EXPORT iris_code iris_allocate_local(iris_context* context,
                                          const iris_allocate_options* options,
                                          iris_allocation* out);
/* Names an allocation that iris_allocate_local or iris_register made without a name, so that other
 * ranks can open it. Not collective. IRIS_FAILED_PRECONDITION if it has a name already. */
IRIS_EXPORT iris_code iris_publish_local(iris_context* context, const iris_allocation* allocation,
                                         const char* name);
/* Makes options->bytes bytes of this process's own memory, at `memory`, available to other ranks,
 * as iris::Context::Register. Not collective. */
IRIS_EXPORT iris_code iris_register(iris_context* context, void* memory,
                                    const iris_allocate_options* options, iris_allocation* out);
/* Makes options->bytes bytes of each rank's own memory, at `memory`, symmetric, as
 * iris::Context::RegisterSymmetric. Collective over the team; the options must agree. */
IRIS_EXPORT iris_code iris_register_symmetric(iris_context* context, iris_team* team, void* memory,
                                              const iris_allocate_options* options,
                                              iris_allocation* out);
/* Sets *out to 1 if the range is symmetric, as iris::Context::IsSymmetric says; else to 0. */
IRIS_EXPORT iris_code iris_is_symmetric(iris_context* context, const void* address, uint64_t bytes,
                                        int32_t* out);

/* Makes iris_torch_malloc take memory from this context's heap from now on, or from no heap if
 * `context` is null. `device` is torch's number of the context's device. Not collective. A process
 * has one such context, that of the last call. */
IRIS_EXPORT iris_code iris_torch_use(iris_context* context, int32_t device);
/* Allocates as iris_allocate_local does without a name, for any thread and any stream. torch's
 * pluggable allocators load this function and iris_torch_free by name. Returns null on failure;
 * iris_error_message and the log give the reason. */
IRIS_EXPORT void* iris_torch_malloc(int64_t bytes, int32_t device, void* stream);
/* Frees memory of iris_torch_malloc after the work of `stream`, on which torch has used it. While
 * the stream is capturing, the memory stays until the context ends instead, and the log says so. If
 * the memory's context has ended, nothing happens. */
IRIS_EXPORT void iris_torch_free(void* memory, int64_t bytes, int32_t device, void* stream);

/* An opened allocation of another rank. It is a plain value; iris_close_local closes it. */
typedef struct iris_opened {
  size_t size;
  uint64_t offset_bytes; /* in the owner's heap */
  uint64_t bytes;
  void* address;    /* of the owner's memory, in this process and its kernels */
  void* symmetric;  /* the same offset in this rank's heap: iris::Opened::symmetric_address */
  uint32_t rank;    /* the owner */
  iris_dtype dtype; /* that the owner gave */
} iris_opened;

/* Opens, by name, memory that `rank` has allocated with iris_allocate_local or registered, as
 * iris::Context::Open. Not collective. timeout_ns 0: the context's timeout. */
IRIS_EXPORT iris_code iris_open_local(iris_context* context, uint32_t rank, const char* name,
                                      int64_t timeout_ns, iris_opened* out);
/* Closes the memory; call it once for each iris_open_local. No kernel may still use the memory. */
IRIS_EXPORT iris_code iris_close_local(iris_context* context, const iris_opened* opened);

/* Barriers and broadcasts of the host. */

/* Waits until all ranks of the team have called it. timeout_ns 0: the context's timeout. */
IRIS_EXPORT iris_code iris_barrier(iris_context* context, iris_team* team, int64_t timeout_ns);
/* Sends the root's bytes, at most 1 MiB, to all ranks of the team. Collective over the team. `root`
 * is a world rank, and only its `data` is read. *out is valid until this thread's next call. */
IRIS_EXPORT iris_code iris_broadcast_bytes(iris_context* context, iris_team* team, const void* data,
                                           size_t bytes, uint32_t root, const void** out,
                                           size_t* out_bytes);

/* Streams, events, graphs and memory of the context's device, as <iris/stream.h> describes them. */

IRIS_EXPORT iris_code iris_stream_create(iris_context* context, iris_stream** out);
/* Makes a handle for a stream of the device's platform, which must outlive the handle. */
IRIS_EXPORT iris_code iris_stream_wrap(iris_context* context, void* native, iris_stream** out);
/* Destroys the handle. A stream that iris_stream_create made is destroyed too, after its work. */
IRIS_EXPORT iris_code iris_stream_destroy(iris_stream* stream);
/* Waits for all earlier work on the stream. Returns the first error of that work, only once. */
IRIS_EXPORT iris_code iris_stream_synchronize(iris_stream* stream);
/* Sets *out to 1 if the stream has no work left, else to 0. */
IRIS_EXPORT iris_code iris_stream_idle(iris_stream* stream, int32_t* out);
/* Returns the platform's stream, and the device that it was created on (-1 if it was wrapped). */
IRIS_EXPORT iris_code iris_stream_native(iris_stream* stream, void** native, int32_t* device);

/* Copies, in stream order, between memory of any two kinds. The ranges must not overlap. */
IRIS_EXPORT iris_code iris_copy_async(void* to, const void* from, uint64_t bytes,
                                      iris_stream* stream);
IRIS_EXPORT iris_code iris_fill_async(void* to, int32_t byte, uint64_t bytes, iris_stream* stream);

/* Until iris_capture_end, records work put on the stream instead of running it. */
IRIS_EXPORT iris_code iris_capture_begin(iris_stream* stream);
IRIS_EXPORT iris_code iris_capture_end(iris_stream* stream, iris_graph** out);
IRIS_EXPORT iris_code iris_graph_launch(iris_graph* graph, iris_stream* stream);
IRIS_EXPORT iris_code iris_graph_destroy(iris_graph* graph);

IRIS_EXPORT iris_code iris_event_create(iris_context* context, iris_event** out);
IRIS_EXPORT iris_code iris_event_destroy(iris_event* event);
/* The event happens when the stream reaches this point. */
IRIS_EXPORT iris_code iris_event_record(iris_event* event, iris_stream* stream);
/* Makes the stream wait for the event's last record before this call. */
IRIS_EXPORT iris_code iris_event_wait(iris_stream* stream, iris_event* event);
/* Returns the time between two events that have happened. */
IRIS_EXPORT iris_code iris_event_elapsed(iris_event* from, iris_event* to, uint64_t* out_ns);

/* Allocate and free memory outside any heap: of the device, or of the host for use by kernels, too.
 * IRIS_RESOURCE_EXHAUSTED if there is not enough. Freeing null does nothing. */
IRIS_EXPORT iris_code iris_malloc_device(iris_context* context, uint64_t bytes, void** out);
IRIS_EXPORT iris_code iris_free_device(iris_context* context, void* memory);
IRIS_EXPORT iris_code iris_malloc_host(iris_context* context, uint64_t bytes, void** out);
IRIS_EXPORT iris_code iris_free_host(iris_context* context, void* memory);

/* Put and get on a stream, of bytes or of rows, at any rank of any node, as iris::Stream::Put and
 * Get. */

typedef struct iris_signal {
  size_t size;
  uint64_t* word; /* in this rank's heap; stands for the peer's word */
  uint64_t value;
  iris_signal_op op;
  uint32_t reserved;
} iris_signal;
IRIS_EXPORT iris_code iris_put_async(iris_context* context, void* dst, const void* src,
                                     uint64_t bytes, uint32_t to, iris_stream* stream,
                                     const iris_signal* signal);
IRIS_EXPORT iris_code iris_get_async(iris_context* context, void* dst, const void* src,
                                     uint64_t bytes, uint32_t from, iris_stream* stream,
                                     const iris_signal* signal);
typedef struct iris_rows {
  size_t size;
  uint64_t rows;
  uint64_t row_bytes;
  uint64_t dst_pitch_bytes;
  uint64_t src_pitch_bytes;
} iris_rows;
IRIS_EXPORT iris_code iris_put_rows_async(iris_context* context, void* dst, const void* src,
                                          const iris_rows* rows, uint32_t to, iris_stream* stream,
                                          const iris_signal* signal);
IRIS_EXPORT iris_code iris_get_rows_async(iris_context* context, void* dst, const void* src,
                                          const iris_rows* rows, uint32_t from, iris_stream* stream,
                                          const iris_signal* signal);
/* Loads the kernels of signals and of copies to other nodes. The call may wait until running
 * kernels have ended. */
IRIS_EXPORT iris_code iris_prepare_signals(iris_context* context);

/* Puts, gets, signals and atomics that the host makes itself, at any rank of any node, as
 * iris::Context::Put and the methods after it. Not collective, and without a stream. */

/* When it returns, `src` may be reused. `signal` may be null. */
IRIS_EXPORT iris_code iris_put(iris_context* context, void* dst, const void* src, uint64_t bytes,
                               uint32_t to, const iris_signal* signal);
IRIS_EXPORT iris_code iris_put_rows(iris_context* context, void* dst, const void* src,
                                    const iris_rows* rows, uint32_t to, const iris_signal* signal);
/* When it returns, the data is at `dst`. */
IRIS_EXPORT iris_code iris_get(iris_context* context, void* dst, const void* src, uint64_t bytes,
                               uint32_t from);
IRIS_EXPORT iris_code iris_get_rows(iris_context* context, void* dst, const void* src,
                                    const iris_rows* rows, uint32_t from);
IRIS_EXPORT iris_code iris_send_signal(iris_context* context, uint32_t to,
                                       const iris_signal* signal);

/* iris_atomic.op */
enum {
  IRIS_ATOMIC_ADD = 0,
  IRIS_ATOMIC_SUB = 1,
  IRIS_ATOMIC_EXCHANGE = 2,
  IRIS_ATOMIC_MIN = 3,
  IRIS_ATOMIC_MAX = 4,
  IRIS_ATOMIC_AND = 5,
  IRIS_ATOMIC_OR = 6,
  IRIS_ATOMIC_XOR = 7,
  IRIS_ATOMIC_COMPARE_EXCHANGE = 8, /* `value` is written if the word is `compare`, by bits */
  IRIS_ATOMIC_LOAD = 9
};
typedef struct iris_atomic {
  size_t size;
  void* word; /* in this rank's heap; stands for the peer's word */
  uint32_t peer;
  int32_t op; /* IRIS_ATOMIC_ADD, ... */
  /* IRIS_I32, IRIS_U32, IRIS_I64, IRIS_U64, IRIS_F32 or IRIS_F64; for IRIS_ATOMIC_ADD also IRIS_F16
   * and IRIS_BF16. */
  iris_dtype dtype;
  uint32_t reserved;
  uint64_t value; /* the bits of the operand, in the lowest bytes */
  uint64_t compare;
} iris_atomic;
/* Carries out the operation and writes the bits of the old value to *old, which may be null. */
IRIS_EXPORT iris_code iris_atomic_fetch(iris_context* context, const iris_atomic* call,
                                        uint64_t* old);

/* Orders this thread's earlier puts to each rank before its later ones to the same rank. */
IRIS_EXPORT iris_code iris_fence(iris_context* context);
/* Waits until all that the host and kernels of this rank have put has arrived, as
 * iris::Context::Quiet. timeout_ns 0: the context's timeout. */
IRIS_EXPORT iris_code iris_quiet(iris_context* context, int64_t timeout_ns);

/* Collectives of a team on a stream. <iris/ccl.h> says what each does, and which memory it takes.
 * Counts are elements. `root`, `to` and `from` are world ranks. */

typedef struct iris_comm_options {
  size_t size;
  const char* name; /* null, or as in iris::ccl::CommunicatorOptions, like all fields */
  uint32_t blocks;  /* 0, as below: a value that suits the device */
  uint32_t block_threads;
  uint32_t max_blocks;
  uint32_t packet_blocks;
  uint64_t packet_bytes;
  uint64_t stage_bytes;
  int64_t timeout_ns;  /* 0: the context's */
  int32_t check_calls; /* not 0: true */
  int32_t symmetric;   /* not 0: true */
  const char* rules;   /* null: the built-in table */
  uint64_t matmul_bytes;
  int32_t barriers_only; /* not 0: true */
  int32_t reserved;
} iris_comm_options;

/* Makes a communicator, with the errors of iris::ccl::Communicator::Create. Collective. */
IRIS_EXPORT iris_code iris_comm_create(iris_context* context, iris_team* team,
                                       const iris_comm_options* options, iris_comm** out);
/* Frees the workspace. Collective over the team. Synchronize streams first. */
IRIS_EXPORT iris_code iris_comm_release(iris_comm* comm);
/* Not collective. Without iris_comm_release before, the workspace stays until the job ends. */
IRIS_EXPORT iris_code iris_comm_destroy(iris_comm* comm);

/* Algorithms of collectives; see iris::ccl::Variant (<iris/ccl_types.h>). 4 and 14 are reserved. */
enum {
  IRIS_VARIANT_AUTO = 0, /* the table of rules chooses */
  IRIS_VARIANT_PACKETS = 1,
  IRIS_VARIANT_DIRECT = 2,
  IRIS_VARIANT_TWO_SHOT = 3,
  IRIS_VARIANT_TWO_PACKETS = 5,
  IRIS_VARIANT_TWO_PHASE = 6,
  IRIS_VARIANT_COPY_ENGINE = 7,
  IRIS_VARIANT_RING = 8,
  IRIS_VARIANT_ATOMIC = 9,
  IRIS_VARIANT_SPINLOCK = 10,
  IRIS_VARIANT_LINES = 11,
  IRIS_VARIANT_TWO_LINES = 12,
  IRIS_VARIANT_PUSH = 13
};

IRIS_EXPORT iris_code iris_all_reduce(iris_comm* comm, const void* in, void* out, uint64_t count,
                                      iris_dtype dtype, iris_reduce_op op, iris_stream* stream,
                                      int32_t variant);
IRIS_EXPORT iris_code iris_reduce_scatter(iris_comm* comm, const void* in, void* out,
                                          uint64_t count_per_member, iris_dtype dtype,
                                          iris_reduce_op op, iris_stream* stream, int32_t variant);
IRIS_EXPORT iris_code iris_reduce(iris_comm* comm, const void* in, void* out, uint64_t count,
                                  iris_dtype dtype, iris_reduce_op op, uint32_t root,
                                  iris_stream* stream, int32_t variant);
IRIS_EXPORT iris_code iris_all_gather(iris_comm* comm, const void* in, void* out,
                                      uint64_t count_per_member, iris_dtype dtype,
                                      iris_stream* stream, int32_t variant);
IRIS_EXPORT iris_code iris_gather(iris_comm* comm, const void* in, void* out,
                                  uint64_t count_per_member, iris_dtype dtype, uint32_t root,
                                  iris_stream* stream, int32_t variant);
IRIS_EXPORT iris_code iris_scatter(iris_comm* comm, const void* in, void* out,
                                   uint64_t count_per_member, iris_dtype dtype, uint32_t root,
                                   iris_stream* stream, int32_t variant);
IRIS_EXPORT iris_code iris_all_to_all(iris_comm* comm, const void* in, void* out,
                                      uint64_t count_per_member, iris_dtype dtype,
                                      iris_stream* stream, int32_t variant);
/* Each of the four arrays has a number for each rank, in the order of the team. */
IRIS_EXPORT iris_code iris_all_to_all_v(iris_comm* comm, const void* in, const uint64_t* to_counts,
                                        const uint64_t* to_offsets, void* out,
                                        const uint64_t* from_counts, const uint64_t* from_offsets,
                                        uint32_t n_members, iris_dtype dtype, iris_stream* stream);
IRIS_EXPORT iris_code iris_broadcast(iris_comm* comm, const void* in, void* out, uint64_t count,
                                     iris_dtype dtype, uint32_t root, iris_stream* stream,
                                     int32_t variant);
/* Only the sender and the receiver call these. */
IRIS_EXPORT iris_code iris_send(iris_comm* comm, const void* in, uint64_t count, iris_dtype dtype,
                                uint32_t to, iris_stream* stream);
IRIS_EXPORT iris_code iris_recv(iris_comm* comm, void* out, uint64_t count, iris_dtype dtype,
                                uint32_t from, iris_stream* stream);
/* Sends and receives at once. A count of 0 leaves out that message. */
IRIS_EXPORT iris_code iris_send_recv(iris_comm* comm, const void* in, uint64_t count, uint32_t to,
                                     void* out, uint64_t out_count, uint32_t from, iris_dtype dtype,
                                     iris_stream* stream);
/* Collect the iris_send and iris_recv calls between the two functions, and start them all at once,
 * as iris::ccl::Communicator::GroupStart says. */
IRIS_EXPORT iris_code iris_group_start(iris_comm* comm);
IRIS_EXPORT iris_code iris_group_end(iris_comm* comm);
/* Makes the stream wait until the streams of all ranks of the team have reached the barrier. */
IRIS_EXPORT iris_code iris_comm_barrier(iris_comm* comm, iris_stream* stream);

/* Returns the first failure since the reset, among the operations that the streams have run. */
IRIS_EXPORT iris_code iris_comm_check(iris_comm* comm);
/* Returns a word that kernels can read, too. It is not 0 once an operation has failed. */
IRIS_EXPORT iris_code iris_comm_error_word(iris_comm* comm, const uint64_t** out);
/* Waits for the stream, then returns what iris_comm_check returns. */
IRIS_EXPORT iris_code iris_comm_synchronize(iris_comm* comm, iris_stream* stream);
/* Makes a communicator that failed usable again, as iris::ccl::Communicator::Reset. Collective. */
IRIS_EXPORT iris_code iris_comm_reset(iris_comm* comm);

/* Tracing of this rank's kernels and calls, into a file for Perfetto. docs/tracing.md describes it.
 * Not collective: each rank starts, stops and writes its own trace. */

/* Drops earlier events and starts the trace, for limit_ns, or until iris_trace_stop if that is 0.
 * IRIS_FAILED_PRECONDITION if the job has no room for a trace, or if a trace is on already.
 * IRIS_DEADLINE_EXCEEDED if the device is too busy to report its clock; the trace is off then. */
IRIS_EXPORT iris_code iris_trace_start(iris_context* context, int64_t limit_ns);
/* Stops the trace. Its events stay until the next start. IRIS_FAILED_PRECONDITION if none is on. */
IRIS_EXPORT iris_code iris_trace_stop(iris_context* context);
/* Writes the events from the start to the stop, or to now if the trace is on. Synchronize streams
 * first: kernels that still run are missing in the file. "%r" in the path becomes the rank.
 * IRIS_FAILED_PRECONDITION if no trace was started. IRIS_NOT_FOUND and IRIS_UNAVAILABLE name the
 * file and the reason. */
IRIS_EXPORT iris_code iris_trace_write(iris_context* context, const char* path);
/* Record a span of the host, as iris::HostSpan: the first call returns its begin, or 0 while no
 * trace is on, and the second records the span until now. A begin of 0 is not recorded. Spans may
 * nest; iris-ctl does not show them. IRIS_INVALID_ARGUMENT if the name is not valid, or if the
 * begin is later than now. */
IRIS_EXPORT iris_code iris_trace_span_begin(iris_context* context, uint64_t* out);
IRIS_EXPORT iris_code iris_trace_span_end(iris_context* context, uint64_t begin, const char* name);
/* Merges `n_paths` files, of ranks of one job, into one file on one clock. It needs no context.
 * IRIS_INVALID_ARGUMENT names the file that is no trace of Iris or does not belong with the others.
 * IRIS_NOT_FOUND and IRIS_UNAVAILABLE name the file and the reason. */
IRIS_EXPORT iris_code iris_trace_merge(const char* const* paths, size_t n_paths, const char* out);

/* GEMMs fused with a collective. <iris/ops.h> says what each does, and which memory it takes. */

/* iris_matmul.operation */
enum {
  IRIS_MATMUL_ALL_REDUCE = 12,
  IRIS_MATMUL_REDUCE_SCATTER = 13,
  IRIS_ALL_GATHER_MATMUL = 14,
  IRIS_MATMUL_ALL_GATHER = 15,
  IRIS_MATMUL_ALL_SCATTER = 16
};

/* iris_matmul.variant; see iris::ops::Variant (<iris/ops_types.h>). */
enum {
  IRIS_MATMUL_AUTO = 0, /* the variant that is expected to be the fastest */
  IRIS_MATMUL_FUSED = 1,
  IRIS_MATMUL_PAIR = 2,
  IRIS_MATMUL_PERSISTENT = 3,
  IRIS_MATMUL_COPY_ENGINE = 4
};

/* iris_matmul.activation */
enum { IRIS_NO_ACTIVATION = 0, IRIS_RELU = 1, IRIS_GELU = 2, IRIS_SILU = 3 };

/* A GEMM with its collective. Matrices are stored by rows; a leading dimension is the number of
 * elements from one row to the next. */
typedef struct iris_matmul {
  size_t size;
  int32_t operation; /* IRIS_MATMUL_ALL_REDUCE, ... */
  int32_t variant;   /* IRIS_MATMUL_AUTO, ... */
  uint64_t m;        /* rows of D on all ranks together */
  uint64_t n;
  uint64_t k;
  int32_t in_dtype;     /* of A and B: IRIS_F16 or IRIS_BF16 */
  int32_t out_dtype;    /* of D: IRIS_F16, IRIS_BF16 or IRIS_F32 */
  int32_t bias_dtype;   /* one of those of D; IRIS_DTYPE_NONE: there is no bias */
  int32_t transposed_b; /* not 0: B is stored as [n, k] */
  int32_t activation;   /* IRIS_NO_ACTIVATION, ... */
  int32_t reserved;
  const void* a;
  uint64_t lda;
  const void* b;
  uint64_t ldb;
  const void* bias;
  void* d;
  uint64_t ldd;
} iris_matmul;

/* Says how a call runs. */
typedef struct iris_matmul_plan {
  size_t size;
  int32_t variant; /* IRIS_MATMUL_FUSED, ... */
  uint32_t blocks;
  uint32_t threads;
  uint32_t tile_rows;
  uint32_t tile_columns;
  uint32_t reserved;
  uint64_t matmul_bytes; /* of workspace that the call needs */
  char multiplier[32];   /* the code that multiplies: "iris", or the vendor's library */
} iris_matmul_plan;

/* Computes iris_comm_options.matmul_bytes for `call` in a team of n_members ranks, as
 * <iris/ops.h> says. `options` may be null; its matmul_bytes is ignored. */
IRIS_EXPORT iris_code iris_matmul_bytes(iris_context* context, uint32_t n_members,
                                        const iris_comm_options* options, const iris_matmul* call,
                                        uint64_t* out);
/* Says how iris_matmul_launch runs this call. If a, b and d are null, only the shape counts, and
 * the plan is for aligned matrices. */
IRIS_EXPORT iris_code iris_matmul_choose(iris_comm* comm, const iris_matmul* call,
                                         iris_matmul_plan* out);
IRIS_EXPORT iris_code iris_matmul_launch(iris_comm* comm, const iris_matmul* call,
                                         iris_stream* stream);

/* MoE dispatch and combine. <iris/moe.h> says what they do, which memory they take, and what each
 * field is. A config is the same on all ranks. */
typedef struct iris_moe_config {
  size_t size;
  uint32_t n_experts;
  uint32_t top_k;
  uint32_t hidden;
  uint32_t max_tokens;
  uint32_t capacity;     /* 0: dropless */
  int32_t in_dtype;      /* IRIS_F32, IRIS_F16, IRIS_BF16 or IRIS_F8E4M3 */
  int32_t row_dtype;     /* IRIS_DTYPE_NONE: as in_dtype; or IRIS_F8E4M3 */
  int32_t partial_dtype; /* IRIS_DTYPE_NONE: as in_dtype, and IRIS_BF16 for IRIS_F8E4M3 */
} iris_moe_config;

/* The memory that a config needs on one rank. */
typedef struct iris_moe_sizes {
  size_t size;
  uint64_t workspace_bytes; /* the same on all ranks */
  uint64_t max_rows;
  uint32_t first_expert; /* of this rank */
  uint32_t local_experts;
  uint64_t scale_columns; /* of a row; 0 if rows are not of IRIS_F8E4M3 */
  uint64_t rows_at_bytes; /* row sources[i] begins here plus sources[i] * row_stride_bytes */
  uint64_t row_stride_bytes;
  uint64_t scales_at_bytes; /* from the beginning of a row to its scales */
} iris_moe_sizes;

typedef struct iris_moe_dispatch_call {
  size_t size;
  /* In the heap, at the same offset on all ranks; aligned to 256. Fill the first 256 bytes with 0
   * before the first call: old bytes may look like a dispatch, and a combine that comes too early
   * would then get no error. */
  void* workspace;
  uint32_t tokens;      /* of this rank: 0 to max_tokens */
  int32_t id_dtype;     /* IRIS_I32 or IRIS_I64 */
  const void* x;        /* [tokens, hidden] */
  const void* x_scales; /* [tokens, scale_columns] of float; only if in_dtype is IRIS_F8E4M3 */
  const void* ids;      /* [tokens, top_k]; -1: no expert */
  const void* weights;  /* [tokens, top_k] of float; null: all are 1 */
  /* Outputs. Those that are null are not written. */
  void* rows;    /* [max_rows, hidden] */
  void* scales;  /* [max_rows, scale_columns] of float */
  void* counts;  /* [local_experts] of int32_t */
  void* offsets; /* [local_experts + 1] of int32_t */
  void* dropped; /* [local_experts] of int32_t */
  void* sources; /* [max_rows] of int32_t */
} iris_moe_dispatch_call;

typedef struct iris_moe_combine_call {
  size_t size;
  void* workspace;   /* of the dispatch */
  uint32_t tokens;   /* as of the dispatch */
  int32_t y_dtype;   /* IRIS_F32, IRIS_F16 or IRIS_BF16 */
  int32_t out_dtype; /* likewise */
  int32_t reserved;
  const void* y; /* [max_rows, hidden] */
  void* out;     /* [tokens, hidden] */
} iris_moe_combine_call;

/* Computes the sizes for the rank at `index` in a team of n_members. IRIS_INVALID_ARGUMENT
 * says what is wrong with the config. */
IRIS_EXPORT iris_code iris_moe_get_sizes(iris_context* context, uint32_t n_members, uint32_t index,
                                         const iris_moe_config* config, iris_moe_sizes* out);
/* Loads the kernels: all ranks call it before any of them starts an operation. */
IRIS_EXPORT iris_code iris_moe_prepare(iris_comm* comm);
/* Puts a dispatch on the stream. All ranks make the same calls. Later failures are reported by
 * iris_comm_check and iris_comm_synchronize: IRIS_OUT_OF_RANGE if a token of a rank names an expert
 * that does not exist. */
IRIS_EXPORT iris_code iris_moe_dispatch(iris_comm* comm, const iris_moe_config* config,
                                        const iris_moe_dispatch_call* call, iris_stream* stream);
/* Puts a combine on the stream, after a dispatch of this config in this workspace. */
IRIS_EXPORT iris_code iris_moe_combine(iris_comm* comm, const iris_moe_config* config,
                                       const iris_moe_combine_call* call, iris_stream* stream);

/* All-reduces fused with an RMS norm. <iris/norm.h> says what each does, and which memory it
 * takes. */

/* iris_norm.operation */
enum { IRIS_ALL_REDUCE_RMS_NORM = 17, IRIS_REDUCE_SCATTER_RMS_NORM_ALL_GATHER = 18 };

/* iris_norm.variant; see iris::norm::Variant (<iris/norm_types.h>). */
enum {
  IRIS_NORM_AUTO = 0, /* the variant that is expected to be the fastest */
  IRIS_NORM_PACKETS = 1,
  IRIS_NORM_LINES = 2,
  IRIS_NORM_TWO_SHOT = 3,
  IRIS_NORM_ALONE = 4,
  IRIS_NORM_TWO_LINES = 5,
  IRIS_NORM_PAIR = 6 /* of a team with ranks on several nodes */
};

/* iris_norm.scaling, for an `out` of fp8; see iris::norm::Scaling (<iris/norm_types.h>). */
enum {
  IRIS_NO_SCALING = 0,
  IRIS_SCALING_STATIC = 1,   /* by `scale` */
  IRIS_SCALING_PER_ROW = 2,  /* into scales[rows] */
  IRIS_SCALING_PER_GROUP = 3 /* into scales[rows, ceil(hidden / 128)] */
};

typedef struct iris_norm {
  size_t size;
  int32_t operation; /* IRIS_ALL_REDUCE_RMS_NORM, ... */
  int32_t variant;   /* IRIS_NORM_AUTO, ... */
  uint64_t rows;     /* on all ranks together; 0: nothing is done */
  uint64_t hidden;
  int32_t in_dtype; /* IRIS_F32, IRIS_F16 or IRIS_BF16 */
  /* As in_dtype; IRIS_F8E4M3 or IRIS_F8E5M2; for IRIS_F32 also IRIS_F16 and IRIS_BF16. */
  int32_t out_dtype;
  int32_t weight_dtype; /* a type that in_dtype can be; IRIS_DTYPE_NONE: all weights are 1 */
  int32_t scaling;      /* IRIS_NO_SCALING, or for an `out` of fp8 another one */
  float epsilon;
  float weight_offset;  /* added to each weight */
  int32_t has_residual; /* not 0: residual and residual_out are used */
  int32_t reserved;
  const void* in;
  const void* residual;
  void* residual_out; /* may be the residual */
  const void* weight;
  void* out;         /* may be `in` */
  const void* scale; /* of f32, like `scales` */
  void* scales;
  /* Elements from one row to the next, at least `hidden`; 0: `hidden`. Ranks may differ in them. */
  uint64_t in_stride;
  uint64_t residual_stride;
  uint64_t residual_out_stride;
  uint64_t out_stride;
} iris_norm;

/* Says how a call runs. */
typedef struct iris_norm_plan {
  size_t size;
  int32_t variant; /* IRIS_NORM_PACKETS, ... */
  uint32_t blocks;
  uint32_t threads;
  uint32_t parts; /* blocks that share a row */
} iris_norm_plan;

/* Says how iris_norm_launch runs this call. The buffers of the call are ignored. */
IRIS_EXPORT iris_code iris_norm_choose(iris_comm* comm, const iris_norm* call, iris_norm_plan* out);
IRIS_EXPORT iris_code iris_norm_launch(iris_comm* comm, const iris_norm* call, iris_stream* stream);

/* Values of tensors, computed by the device. */

typedef int32_t iris_fill_kind;
enum {
  IRIS_FILL_VALUE = 0,    /* every element is one value */
  IRIS_FILL_ARANGE = 1,   /* start + i step, as torch's arange: computed in double, rounded once */
  IRIS_FILL_LINSPACE = 2, /* `steps` numbers from start to end, both included */
  IRIS_FILL_RAND = 3,     /* evenly distributed in [0, 1) */
  IRIS_FILL_UNIFORM = 4,  /* evenly distributed in [start, end); all start if they are equal */
  IRIS_FILL_RANDN = 5,    /* normally distributed, with mean 0 and variance 1 */
  IRIS_FILL_RANDINT = 6   /* whole numbers from whole_start to whole_end, both included */
};

/* A sequence, and the part of it that is written. Random numbers are a function of (seed, call,
 * element) by Philox4x32-10, the same on every backend; <iris/random.h> documents the bits. rand,
 * uniform and randn exist for IRIS_F32, IRIS_F64, IRIS_F16 and IRIS_BF16; arange and linspace for
 * all types but IRIS_BOOL. A number of IRIS_U64 is given as the bits of an int64_t. */
typedef struct iris_fill_options {
  size_t size;
  iris_fill_kind kind;
  iris_dtype dtype;
  uint64_t first; /* number of the first element that is written */
  uint64_t count; /* elements that are written */
  double start;   /* value, arange: of floats. linspace, uniform: of all types */
  double end;
  double step;
  int64_t whole_start; /* value, arange: of integers. randint: of all types */
  int64_t whole_end;
  int64_t whole_step;
  uint64_t steps; /* linspace: of the whole sequence */
  uint64_t seed;
  uint64_t call; /* a program numbers its calls, so that each has numbers of its own */
  /* Where elements go if the memory is not contiguous: n_dims sizes and strides, in elements, for
   * `count` elements in all. n_dims 0: `count` consecutive elements. For iris_tensor_fill, 0. */
  uint32_t n_dims;
  uint32_t reserved;
  const int64_t* shape;
  const int64_t* strides;
} iris_fill_options;

/* Writes elements `first` to `first + count - 1` of the sequence to `address`, in row-major order
 * and in stream order. The memory is in the heap, or any other that the device can write.
 * IRIS_INVALID_ARGUMENT, before anything starts, says what is wrong: an address that is null, not
 * aligned to the element, or only partly in the heap; numbers that the type cannot hold, that are
 * not finite, or that are no range; counts that overflow. */
IRIS_EXPORT iris_code iris_fill(iris_context* context, void* address,
                                const iris_fill_options* options, iris_stream* stream);

/* Tensors: memory with a shape, strides, a type and perhaps a name. A handle is a view, as an
 * iris::Tensor in <iris/tensor.h>. iris_tensor_free frees the memory, and iris_tensor_destroy
 * releases one handle. With a null stream, a call waits until its work is done. */

#define IRIS_MAX_DIMS 8

typedef struct iris_tensor iris_tensor;

typedef struct iris_tensor_options {
  size_t size;
  iris_dtype dtype;
  uint32_t n_dims;
  const int64_t* shape;          /* n_dims numbers, each 0 or more */
  const char* name;              /* unique in the job, or null; shown by iris-ctl */
  const iris_fill_options* fill; /* as for iris_tensor_fill; null: the memory is not filled */
  iris_stream* stream;           /* of the fill */
} iris_tensor_options;

typedef struct iris_tensor_info {
  size_t size;
  iris_dtype dtype;
  uint32_t n_dims;
  int64_t shape[8];
  int64_t strides[8]; /* in elements */
  uint64_t n_elements;
  uint64_t bytes;        /* of all elements */
  void* address;         /* of the first element, in this process and its kernels */
  uint64_t offset_bytes; /* of the first element in the heap; the same on all ranks of the team */
  uint32_t rank;         /* that has this copy */
  uint32_t team_id;      /* team that allocated it */
  int32_t contiguous;    /* not 0: elements are consecutive, in row-major order */
  int32_t symmetric;     /* not 0: in the heap; 0: of another library (iris_tensor_from_dlpack) */
  const char* name;      /* null if none; valid as long as the handle */
} iris_tensor_info;

/* Allocates a contiguous tensor in the heap, as iris_allocate does, and fills it if the options say
 * so. Collective over the team; all of its ranks give a fill and a stream, or none does. Without a
 * stream, a call that fills returns when the copies of all ranks have their values, so that a rank
 * may write into another's at once; with one, the fill is in its order, and no rank waits. */
IRIS_EXPORT iris_code iris_tensor_create(iris_context* context, iris_team* team,
                                         const iris_tensor_options* options, iris_tensor** out);
/* This and all following functions return IRIS_FAILED_PRECONDITION if the tensor was freed, or if
 * its context was left. */
IRIS_EXPORT iris_code iris_tensor_get_info(iris_tensor* tensor, iris_tensor_info* out);
/* Frees the memory of a tensor, given any view of it, as iris::Tensor::Free. Collective over the
 * team that created it. */
IRIS_EXPORT iris_code iris_tensor_free(iris_tensor* tensor);
/* Releases the handle; the memory stays. Not collective. */
IRIS_EXPORT iris_code iris_tensor_destroy(iris_tensor* tensor);

/* Views are not collective, and copy nothing. Negative indices and ends count from the end, as in
 * Python. */

/* Makes a view of another rank's copy. IRIS_OUT_OF_RANGE if there is no such rank.
 * IRIS_INVALID_ARGUMENT if the rank has no copy of the tensor. */
IRIS_EXPORT iris_code iris_tensor_at(iris_tensor* tensor, uint32_t rank, iris_tensor** out);
/* Selects the elements start, start + step, ... before stop of one dimension. Ends beyond the
 * dimension are cut to it. The step is at least 1. */
IRIS_EXPORT iris_code iris_tensor_slice(iris_tensor* tensor, uint32_t dim, int64_t start,
                                        int64_t stop, int64_t step, iris_tensor** out);
/* Selects one element, and drops the dimension. IRIS_OUT_OF_RANGE if there is no such element. */
IRIS_EXPORT iris_code iris_tensor_select(iris_tensor* tensor, uint32_t dim, int64_t index,
                                         iris_tensor** out);
/* Views a contiguous tensor in another shape of equally many elements; one size may be -1. */
IRIS_EXPORT iris_code iris_tensor_reshape(iris_tensor* tensor, uint32_t n_dims,
                                          const int64_t* shape, iris_tensor** out);
/* Puts the dimensions into another order: dimension i of *out is dimension dims[i]. */
IRIS_EXPORT iris_code iris_tensor_permute(iris_tensor* tensor, uint32_t n_dims,
                                          const uint32_t* dims, iris_tensor** out);

/* Values, in row-major order; strides may be any. */

/* Fills the tensor as iris_fill does. `dtype` is IRIS_DTYPE_NONE or the tensor's, `count` is 0 or
 * the tensor's. */
IRIS_EXPORT iris_code iris_tensor_fill(iris_tensor* tensor, const iris_fill_options* options,
                                       iris_stream* stream);
/* Copy from and to consecutive elements in host memory, and wait until that is done. Each
 * contiguous row is one copy, so strided elements are slow. IRIS_INVALID_ARGUMENT if the tensor has
 * another dtype, or another number of bytes. */
IRIS_EXPORT iris_code iris_tensor_from_host(iris_tensor* tensor, const void* data, uint64_t bytes,
                                            iris_dtype dtype, iris_stream* stream);
IRIS_EXPORT iris_code iris_tensor_to_host(iris_tensor* tensor, void* data, uint64_t bytes,
                                          iris_dtype dtype, iris_stream* stream);
/* Copies, in stream order, between tensors of one context that have the same shape and type and do
 * not overlap; one of them may be a peer's (iris_tensor_at). */
IRIS_EXPORT iris_code iris_tensor_copy(iris_tensor* to, iris_tensor* from, iris_stream* stream);

/* Exports the tensor as a DLManagedTensor (DLPack 0.x). The context does not end until the deleter
 * of *out is called, on any thread; but iris_context_leave still unmaps the memory. */
IRIS_EXPORT iris_code iris_tensor_to_dlpack(iris_tensor* tensor, void** out);
/* Imports a DLManagedTensor, as iris::Tensor::FromDlpack. `dtype` is the expected type, or
 * IRIS_DTYPE_NONE. On an error, the caller still owns `managed`. */
IRIS_EXPORT iris_code iris_tensor_from_dlpack(iris_context* context, void* managed,
                                              iris_dtype dtype, iris_tensor** out);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* IRIS_C_API_H_ */
