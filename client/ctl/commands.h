// The commands of iris-ctl that ask irisd: what each says, once. One thread; they own nothing.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/peek.h"

namespace iris::ctl {

struct Options {
  std::string runtime_dir;
  bool json = false;
  double watch_seconds = 0;  // 0: once
  std::string job;           // listings: empty means all
  bool names = false;
  bool follow = false;
  PeekWish peek;
};

// Takes a part of what a command says. False: nobody reads it any more.
using Output = absl::FunctionRef<bool(const std::string&)>;

// What one command says, once. Listings say it page by page.
using Command = absl::Status (*)(const Options&, AdminClient&, Output);

// The command of that name; nullptr: none that asks irisd once.
Command FindCommand(const std::string& name);

// `status`, which a command of `options` gave; if no job has the name that was asked for, with
// those that have one like it.
absl::Status WithNearJobs(const Options& options, AdminClient& client, const absl::Status& status);

}  // namespace iris::ctl
