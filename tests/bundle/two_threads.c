/* Two ranks of one process, each on a thread of its own. With an argument they also count without a lock. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include "iris/c_api.h"

static int counted;
static int counts;

#define TRY(call)                                    \
  do {                                               \
    if ((call) != IRIS_OK) {                         \
      fprintf(stderr, "%s\n", iris_error_message()); \
      return NULL;                                   \
    }                                                \
  } while (0)

static void* Rank(void* rank) {
  iris_context_options options;
  iris_context_options_init(&options);
  options.job = "two_threads";
  options.rank = (int32_t)(intptr_t)rank;
  options.n_ranks = 2;
  options.heap_bytes = 32 << 20;
  iris_context* context;
  TRY(iris_context_create(&options, &context));
  iris_stream* stream;
  TRY(iris_stream_create(context, &stream));
  iris_comm* comm;
  TRY(iris_comm_create(context, NULL, NULL, &comm));
  const iris_allocate_options word = {
      .size = sizeof(word), .bytes = sizeof(int32_t), .name = "word", .dtype = IRIS_I32};
  iris_allocation place = {.size = sizeof(place)};
  TRY(iris_allocate(context, NULL, &word, &place));
  *(int32_t*)place.address = 1 + options.rank;
  TRY(iris_all_reduce(comm, place.address, place.address, 1, IRIS_I32, IRIS_SUM, stream, 0));
  TRY(iris_comm_synchronize(comm, stream));
  if (counts) ++counted;
  TRY(iris_barrier(context, NULL, 0));
  printf("rank %d got %d\n", options.rank, *(int32_t*)place.address);
  TRY(iris_context_destroy(context));
  return NULL;
}

int main(int argc, char** argv) {
  (void)argv;
  counts = argc > 1;
  pthread_t other;
  if (pthread_create(&other, NULL, Rank, (void*)1) != 0) return 1;
  Rank((void*)0);
  return pthread_join(other, NULL);
}
