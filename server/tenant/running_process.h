// RunningProcess: a WorkerProcess as RunningWorker. Belongs to one thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "proto/wire/unique_fd.h"
#include "server/tenant/running_worker.h"
#include "server/tenant/worker_process.h"

namespace iris::server {

class RunningProcess : public RunningWorker {
 public:
  explicit RunningProcess(WorkerProcess process) : process_(std::move(process)) {}
  pid_t pid() const override { return process_.pid(); }
  int pidfd() const override { return process_.pidfd(); }
  wire::UniqueFd TakeLink() override { return process_.TakeLink(); }
  void Kill() override { process_.Kill(); }
  std::optional<std::string> Reap() override { return process_.Reap(); }

 private:
  WorkerProcess process_;
};

}  // namespace iris::server
