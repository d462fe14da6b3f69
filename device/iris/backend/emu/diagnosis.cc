#include "iris/backend/emu/diagnosis.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/debugging/symbolize.h"
#include "iris/backend/emu/backend.h"
#include "iris/backend/emu/block.h"
#include "iris/backend/emu/scheduler.h"
#include "iris/backend/heap_map.h"

namespace iris::backend::emu {
namespace {

#if defined(IRIS_ASAN) || defined(IRIS_TSAN)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

using Number = unsigned long long;

// Collects a few lines of text on the stack, and writes them at once.
class Report {
 public:
  __attribute__((format(printf, 2, 3))) void Add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(text_ + used_, sizeof(text_) - used_, format, arguments);
    va_end(arguments);
    if (n > 0) used_ = std::min(used_ + static_cast<size_t>(n), sizeof(text_) - 1);
  }
  void Write() const {
    size_t written = 0;
    while (written < used_) {
      const ssize_t n = write(STDERR_FILENO, text_ + written, used_ - written);
      if (n <= 0) return;
      written += static_cast<size_t>(n);
    }
  }

 private:
  char text_[4096] = {};
  size_t used_ = 0;
};

// Adds "iris: rank 1: kernel RingStep, block 2, thread 5: ".
void AddWho(Report& report, const HeapView& heaps) {
  report.Add("iris: ");
  if (heaps.n_ranks > 0) report.Add("rank %u: ", heaps.rank);
  const Work* const work = RunningWork();
  if (work == nullptr) {
    report.Add("a host thread: ");
    return;
  }
  char name[512];
  NameOfFunction(work->Kernel(), name, sizeof(name));
  report.Add("kernel %s, block %u, thread %u: ", name, t_current.block_index,
             t_current.thread_index);
}

// Adds "\"x\" (offset 512 to 1024)".
void AddRange(Report& report, const HeapRange& range) {
  if (range.name[0] != '\0') {
    report.Add("%s%s%s", range.internal != 0 ? "" : "\"", range.name,
               range.internal != 0 ? "" : "\"");
  } else {
    report.Add("an allocation without a name");
  }
  report.Add(" (offset %llu to %llu)", static_cast<Number>(range.offset_bytes),
             static_cast<Number>(range.offset_bytes + range.bytes));
}

// Describes the allocation at an offset of the heap of `rank`, or near it.
void AddNearest(Report& report, const HeapView& heaps, uint32_t rank, uint64_t offset) {
  HeapRange range;
  if (heaps.map == nullptr ||
      !heaps.map->nearest(heaps.map, rank - heaps.first_mapped, offset, &range)) {
    return;
  }
  const uint64_t end = range.offset_bytes + range.bytes;
  if (offset < range.offset_bytes) {
    report.Add("; the nearest allocation is %llu bytes further: ",
               static_cast<Number>(range.offset_bytes - offset));
  } else if (offset >= end) {
    report.Add("; the nearest allocation ends %llu bytes before: ",
               static_cast<Number>(offset - end));
  } else {
    report.Add("; %llu bytes inside ", static_cast<Number>(offset - range.offset_bytes));
  }
  AddRange(report, range);
}

// Describes the place of an address relative to the heaps.
void AddPlace(Report& report, const HeapView& heaps, uint64_t address) {
  if (heaps.n_ranks == 0 || heaps.stride_bytes == 0) return;
  const uint32_t n_mapped = heaps.n_mapped == 0 ? heaps.n_ranks : heaps.n_mapped;
  const uint64_t base = heaps.base + heaps.first_mapped * heaps.stride_bytes;
  const uint64_t window_bytes = n_mapped * heaps.stride_bytes;
  if (address - base < window_bytes) {
    const uint32_t owner =
        heaps.first_mapped + static_cast<uint32_t>((address - base) / heaps.stride_bytes);
    const uint64_t offset = (address - base) % heaps.stride_bytes;
    report.Add("iris:   the address is at offset %llu of the heap of rank %u",
               static_cast<Number>(offset), owner);
    if (owner == heaps.rank) report.Add(" (this rank)");
    AddNearest(report, heaps, owner, offset);
  } else if (address < 4096) {
    report.Add("iris:   the address is a null pointer plus %llu", static_cast<Number>(address));
  } else if (address < base && base - address < window_bytes) {
    report.Add("iris:   the address is %llu bytes before the first heap",
               static_cast<Number>(base - address));
  } else if (address >= base && address - base - window_bytes < window_bytes) {
    report.Add("iris:   the address is %llu bytes behind the last heap",
               static_cast<Number>(address - base - window_bytes));
  } else {
    report.Add("iris:   the address is in no heap");
  }
  report.Add("\n");
}

void AddMistake(Report& report, const BadAccess& access) {
  const HeapView& heaps = access.heaps;
  switch (access.why) {
    case BadAccess::Why::kPeer:
      report.Add(
          "there is no rank %u in a job of %u: ranks are 0 to %u, and a member of a team is "
          "a rank by MemberRank(team, index)\n",
          access.peer, heaps.n_ranks, heaps.n_ranks - 1);
      return;
    case BadAccess::Why::kTeamIndex:
      report.Add(
          "the team has no member %u: it has %u, and an index in a team is not a rank of the "
          "world\n",
          access.peer, access.team_size);
      return;
    case BadAccess::Why::kNotAMember:
      report.Add("this rank is not a member of the team: only members call its barrier\n");
      return;
    case BadAccess::Why::kAddress:
      if (access.address - heaps.base < heaps.n_ranks * heaps.stride_bytes &&
          (access.address - heaps.base) / heaps.stride_bytes != access.owner) {
        report.Add(
            "the address is in the heap of another rank: give the address of the own copy, "
            "and the peer as the rank\n");
      } else if (access.address - heaps.base < heaps.n_ranks * heaps.stride_bytes) {
        report.Add("the range ends behind the heap, which has room for %llu bytes\n",
                   static_cast<Number>(heaps.stride_bytes));
      } else {
        report.Add("the address is outside the heap: give an address that Allocate returned\n");
      }
      return;
    case BadAccess::Why::kAllocation: {
      char why[512] = {};
      const uint64_t offset = (access.address - heaps.base) % heaps.stride_bytes;
      (void)heaps.map->allowed(heaps.map, access.owner - heaps.first_mapped, offset, access.bytes,
                               why, sizeof(why));
      report.Add("%s\n", why);
      return;
    }
    case BadAccess::Why::kAlignment:
      report.Add("the address is not aligned: it must be a multiple of %llu\n",
                 static_cast<Number>(access.alignment_bytes));
      return;
    case BadAccess::Why::kOtherNode:
      report.Add(
          "rank %u is on another node, and this call reaches the ranks of this node alone, %u to "
          "%u: use Put, Get, PutSignal, signals or atomics\n",
          access.peer, heaps.first_mapped, heaps.first_mapped + heaps.n_mapped - 1);
      return;
    case BadAccess::Why::kOutsideHeap:
      report.Add(
          "rank %u is on another node, so more than 8 bytes must come from, or go to, this rank's "
          "heap\n",
          access.peer);
      return;
    case BadAccess::Why::kTeamOfNodes:
      report.Add(
          "the team has ranks of several nodes: use Barrier or GridBarrier, or a team of this "
          "node's ranks\n");
      return;
  }
}

struct sigaction g_before_segv;
struct sigaction g_before_bus;

// Returns true if the fault was a write. Only x86-64 reports that.
bool IsWrite(const void* context) {
#if defined(__x86_64__)
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  (void)context;
  return false;
#endif
}

void DescribeFault(int signal, const siginfo_t& info, const void* context) {
  HeapView heaps;
  const Work* const work = RunningWork();
  (void)work->Heaps(&heaps);
  const uint64_t address = reinterpret_cast<uint64_t>(info.si_addr);
  Report report;
  AddWho(report, heaps);
  if (IsStackGuard(info.si_addr)) {
    report.Add("it overflowed its stack (%zu KiB): use less local memory or recursion\n",
               kUsableStackBytes / 1024);
  } else if (info.si_code == SI_KERNEL) {
    report.Add("it used an address that no memory can have: a pointer that was never set?\n");
  } else if (signal == SIGBUS) {
    report.Add(
        "no memory is behind 0x%llx: the machine or the user has none left, or the memory "
        "was taken away\n",
        static_cast<Number>(address));
    AddPlace(report, heaps, address);
  } else {
    report.Add("it %s 0x%llx, where no memory is mapped\n", IsWrite(context) ? "wrote to" : "read",
               static_cast<Number>(address));
    AddPlace(report, heaps, address);
  }
  report.Write();
}

void OnFault(int signal, siginfo_t* info, void* context) {
  // Signals with si_code <= 0 were sent by a process, and are no faults of the kernel.
  if (RunningWork() != nullptr && info->si_code > 0) DescribeFault(signal, *info, context);
  const struct sigaction& before = signal == SIGBUS ? g_before_bus : g_before_segv;
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    return before.sa_sigaction(signal, info, context);
  }
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    return before.sa_handler(signal);
  }
  // The default action follows when the instruction faults again or the signal is raised again.
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
  if (info->si_code <= 0) raise(signal);
}

}  // namespace

void NameOfFunction(const void* function, char* out, size_t bytes) {
  if (absl::Symbolize(function, out, static_cast<int>(bytes))) {
    // Remove unnamed namespaces and parameters, which do not help a reader.
    constexpr char kUnnamed[] = "(anonymous namespace)::";
    while (char* const unnamed = strstr(out, kUnnamed)) {
      char* const rest = unnamed + sizeof(kUnnamed) - 1;
      memmove(unnamed, rest, strlen(rest) + 1);
    }
    if (char* const parameters = strchr(out, '(')) *parameters = '\0';
    return;
  }
  Dl_info info;
  if (dladdr(function, &info) == 0) {
    snprintf(out, bytes, "kernel at %p", function);
    return;
  }
  snprintf(out, bytes, "kernel at %s+0x%zx", info.dli_fname,
           static_cast<size_t>(static_cast<const char*>(function) -
                               static_cast<const char*>(info.dli_fbase)));
}

void InstallFaultHandler() {
  if (kSanitized) return;
  struct sigaction mine = {};
  mine.sa_sigaction = &OnFault;
  mine.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&mine.sa_mask);
  if (sigaction(SIGSEGV, nullptr, &g_before_segv) == 0) sigaction(SIGSEGV, &mine, nullptr);
  if (sigaction(SIGBUS, nullptr, &g_before_bus) == 0) sigaction(SIGBUS, &mine, nullptr);
}

void AcceptFaults() {
  if (kSanitized) return;
  constexpr size_t kBytes = 128 * 1024;  // handlers of the program may run on this stack, too
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return;  // then a fault ends the process without a message
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = kBytes;
  if (sigaltstack(&stack, nullptr) != 0) return;
  sigset_t faults;
  sigemptyset(&faults);
  sigaddset(&faults, SIGSEGV);
  sigaddset(&faults, SIGBUS);
  pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
}

}  // namespace iris::backend::emu

namespace iris::backend {

void RefuseAccess(const BadAccess& given) {
  using emu::Number;
  BadAccess access = given;
  // If the check does not have the heaps, use those of the running kernel.
  const emu::Work* const work = emu::RunningWork();
  if (access.heaps.n_ranks == 0 && work != nullptr) (void)work->Heaps(&access.heaps);
  emu::Report report;
  emu::AddWho(report, access.heaps);
  report.Add("%s", access.call);
  const bool has_address = access.why != BadAccess::Why::kTeamIndex &&
                           access.why != BadAccess::Why::kNotAMember &&
                           access.why != BadAccess::Why::kTeamOfNodes;
  if (access.bytes > 0) report.Add(" of %llu bytes", static_cast<Number>(access.bytes));
  if (has_address) report.Add(" at 0x%llx", static_cast<Number>(access.address));
  if (has_address && given.heaps.n_ranks > 0) report.Add(" for rank %u", access.peer);
  report.Add(": ");
  emu::AddMistake(report, access);
  if (has_address) emu::AddPlace(report, access.heaps, access.address);
  report.Write();
  abort();
}

}  // namespace iris::backend
