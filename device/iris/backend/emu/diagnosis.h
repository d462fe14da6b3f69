// Diagnoses a kernel that cannot continue: prints the kernel, rank, block, thread and access, and
// describes the memory near the address. Then the process ends, and irisd informs the other ranks.
//
// Callers are RefuseAccess (heap_map.h) and a worker's SIGSEGV and SIGBUS. Nothing here allocates
// memory: the kernel may have damaged the heap of the program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace iris::backend::emu {

// Installs a handler of SIGSEGV and SIGBUS, once for the process. It reports faults inside kernels
// and passes every signal on to the earlier handler or the default action. Not under a sanitizer.
void InstallFaultHandler();

// Gives the calling worker a separate stack for these signals. Does nothing under a sanitizer.
void AcceptFaults();

// Writes the name of the function at `function`, static or not, without parameters, from its
// program's or library's symbols; "kernel at FILE+0x123" if those were stripped.
void NameOfFunction(const void* function, char* out, size_t bytes);

}  // namespace iris::backend::emu
