// ReadLauncher: reads rank, size and job from the environment of a launcher. Header-only over
// <iris/c_api.h>. Thread-safe. C++17.
#pragma once

#include <string>

#include "iris/c_api.h"
#include "iris/context.h"
#include "iris/status.h"

namespace iris {

struct LauncherInfo {
  std::string launcher{};  // "iris", "torchrun", "openmpi", "mpich", "pmix", "slurm", "none"
  std::string job{};
  int rank = 0;
  int n_ranks = 1;
  int local_rank = 0;
  int n_local = 0;  // ranks of this node; 0: not known, which means all
};

// Returns the values that Context::Create uses for options that are left out. kInvalidArgument
// names the variable that is wrong.
inline StatusOr<LauncherInfo> ReadLauncher() {
  auto from = impl::Sized<iris_launcher>();
  IRIS_RETURN_IF_ERROR(impl::FromC(iris_launcher_read(&from)));
  return LauncherInfo{from.name, from.job, from.rank, from.n_ranks, from.local_rank, from.n_local};
}

}  // namespace iris
