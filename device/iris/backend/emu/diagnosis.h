// What the emulator says of a kernel that cannot go on: which kernel, rank, block and thread, what
// it did, and what lies near the address. Then the process ends, so that irisd tells the other
// ranks at once.
//
// Two ways lead here: RefuseAccess (heap_map.h), by which the device API refuses an argument, and
// the signals SIGSEGV and SIGBUS of a worker. Nothing here allocates memory: the kernel may have
// spoilt the heap of the program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace iris::backend::emu {

// Makes the handler of SIGSEGV and SIGBUS, once for the process. The handler speaks for faults
// inside kernels and passes every signal on to the handler that was there before, or to the default
// action. Does nothing under a sanitizer, whose own reports say more.
void InstallFaultHandler();

// Lets the calling worker take these two signals, on a stack of their own: the fault may be that a
// fiber has left its stack. Does nothing under a sanitizer.
void AcceptFaults();

// The name of the function that begins at `function`, without its parameters: from the symbols of
// its program or library, static functions included. "kernel at FILE+0x123" if those were stripped.
void NameOfFunction(const void* function, char* out, size_t bytes);

// The plain name of a mangled one without its parameters, as far as it is made of names alone; else
// the mangled one. Exposed for tests.
void PlainName(const char* mangled, char* out, size_t bytes);

}  // namespace iris::backend::emu
