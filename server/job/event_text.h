// Events as words, for the log and for `iris-ctl events`. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/job/events.h"

namespace iris::server {

// Returns the word that names the kind of event, such as "job_forming".
absl::string_view KindOf(const Event& event);
Severity SeverityOf(const Event& event);
// Returns the details of the event besides job, rank, pid and uid.
std::string TextOf(const Event& event);

}  // namespace iris::server
