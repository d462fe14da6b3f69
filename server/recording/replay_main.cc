// iris-replay: replays recordings of irisd (--record) and reports whether effects are the same.
#include <cinttypes>
#include <cstdio>

#include "server/recording/replay.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: iris-replay FILE...\n");
    return 2;
  }
  int failed = 0;
  for (int i = 1; i < argc; ++i) {
    const auto report = iris::server::Replay(argv[i]);
    if (!report.ok()) {
      fprintf(stderr, "%s\n", report.status().ToString().c_str());
      failed = 1;
      continue;
    }
    printf("%s: %" PRIu64 " inputs have the same effects (%" PRIu64 " bytes)%s\n", argv[i],
           report->n_inputs, report->n_effect_bytes,
           report->cut ? "; the last record is not whole" : "");
  }
  return failed;
}
