// iris-ctl waits: who waits for whom, a line for each wait, or JSON. Pure functions.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "proto/iris/v1/admin.pb.h"

namespace iris::ctl {

// "job train  all_reduce #17 of 4 ranks (1 MiB, f32)  ranks 0,1,3 wait for rank 2 (pid 4711,
// stopped) since 12.3 s". One line, whatever names are in it.
std::string WaitText(const v1::Wait& wait);

// An array: an object for each wait, with the fields of iris.v1.Wait; kinds and places are words.
nlohmann::ordered_json WaitsJson(const v1::ListWaitsReply& reply);

}  // namespace iris::ctl
