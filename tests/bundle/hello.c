/* The same in C. */
#include <stdint.h>
#include <stdio.h>

#include "iris/c_api.h"

#define TRY(call)                                    \
  do {                                               \
    if ((call) != IRIS_OK) {                         \
      fprintf(stderr, "%s\n", iris_error_message()); \
      return 1;                                      \
    }                                                \
  } while (0)

int main(void) {
  iris_context_options options;
  iris_context_options_init(&options);
  options.heap_bytes = 64 << 20;
  iris_context* context;
  TRY(iris_context_create(&options, &context));
  iris_context_info info = {.size = sizeof(info)};
  TRY(iris_context_get_info(context, &info));
  iris_stream* stream;
  TRY(iris_stream_create(context, &stream));
  iris_comm* comm;
  TRY(iris_comm_create(context, NULL, NULL, &comm));
  const iris_allocate_options word = {
      .size = sizeof(word), .bytes = sizeof(int32_t), .name = "word", .dtype = IRIS_I32};
  iris_allocation place = {.size = sizeof(place)};
  TRY(iris_allocate(context, NULL, &word, &place));
  int32_t value = 100 + (int32_t)info.rank;
  TRY(iris_copy_async(place.address, &value, sizeof(value), stream));
  TRY(iris_all_reduce(comm, place.address, place.address, 1, IRIS_I32, IRIS_SUM, stream, 0));
  TRY(iris_copy_async(&value, place.address, sizeof(value), stream));
  TRY(iris_comm_synchronize(comm, stream));
  printf("rank %u got %d\n", info.rank, value);
  TRY(iris_barrier(context, NULL, 0));
  TRY(iris_context_destroy(context));
  return 0;
}
