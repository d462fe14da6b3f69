// A rank of a job that registers memory of its own, and puts into that of the next one. Under a
// launcher: iris-run -n 2 -- registered. Prints what does not hold; exit code 0 if all does.
#include "tests/integration/registered_buffers.h"

int main() { return iris::testing::RegisteredBuffers(); }
