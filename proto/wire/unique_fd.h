// base::UniqueFd under the name that code around frames uses.
#pragma once

#include "device/base/unique_fd.h"

namespace iris::wire {

using base::UniqueFd;

}  // namespace iris::wire
