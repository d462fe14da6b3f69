// The part of PMIx's client library that Iris calls, as PMIx 3 to 5 declare it. The library is
// opened at run time, and its headers are not needed; pmix_headers_test.py compares the two.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace iris::base {

struct PmixProc {
  char nspace[256] = {};
  uint32_t rank = 0;
};

struct PmixValue {
  enum Type : uint16_t { kBool = 1, kString = 3, kUint32 = 14 };
  uint16_t type = 0;
  union {
    bool flag;
    char* string;
    uint32_t uint32;
    uint64_t room[3] = {};  // of the other types
  } data;
};

struct PmixInfo {
  char key[512] = {};
  uint32_t flags = 0;
  PmixValue value;
};

inline constexpr int kPmixSuccess = 0;
inline constexpr uint8_t kPmixGlobal = 3;                  // a scope: processes of all nodes
inline constexpr uint32_t kPmixWildcard = UINT32_MAX - 1;  // a rank: all of a namespace
inline constexpr char kPmixCollectData[] = "pmix.collect";
inline constexpr char kPmixJobSize[] = "pmix.job.size";
inline constexpr char kPmixHostname[] = "pmix.hname";

// Members have the names of the functions without PMIx_. Values that `Get` returns are from malloc.
struct PmixApi {
  int (*Init)(PmixProc* self, PmixInfo* info, size_t n_info);
  int (*Finalize)(const PmixInfo* info, size_t n_info);
  int (*Put)(uint8_t scope, const char* key, PmixValue* value);
  int (*Commit)();
  int (*Fence)(const PmixProc* procs, size_t n_procs, const PmixInfo* info, size_t n_info);
  int (*Get)(const PmixProc* proc, const char* key, const PmixInfo* info, size_t n_info,
             PmixValue** value);
  const char* (*Error_string)(int status);
};

// Opens libpmix.so.2, which is never closed; that of an MPI library, if it is loaded already.
// kNotFound if there is none, kFailedPrecondition if it lacks a function.
absl::StatusOr<PmixApi> OpenPmix();

}  // namespace iris::base
