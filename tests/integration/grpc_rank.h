// GrpcRank: a rank of a job that speaks gRPC, as docs/protocol.md says to, without the client
// library: for what workers do for such clients. It asks for another gRPC socket when it has lost
// one, and repeats the call. It maps no memory.
//
// One thread calls; Cut may come from another one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/iris/v1/heap.grpc.pb.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"

namespace iris::testing {

class GrpcRank {
 public:
  // Opens a session. Nothing that follows takes longer than `patience`.
  static absl::StatusOr<std::unique_ptr<GrpcRank>> Connect(const std::string& session_socket,
                                                           absl::Duration patience);
  ~GrpcRank();

  // Joins and maps: all ranks have, when it returns.
  absl::Status Join(const std::string& job, int rank, int n_ranks, uint64_t heap_bytes = 2 << 20);
  // The world's next operation: `request` needs the operation alone.
  absl::StatusOr<iris::v1::OperationResult> Operate(iris::v1::OperateRequest request);
  absl::Status Leave();

  // Closes the gRPC connection, as if it was lost.
  void Cut() ABSL_LOCKS_EXCLUDED(mu_);
  // How often another gRPC socket came in place of a lost one.
  int replaced() const { return replaced_; }

 private:
  using Stub = iris::v1::HeapService::Stub;

  explicit GrpcRank(absl::Duration patience) : patience_(patience) {}
  // Reads frames until `done`, keeps descriptors, and acknowledges them.
  absl::Status Receive(const std::function<bool()>& done);
  void UseSocket(wire::UniqueFd socket) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls until there is an answer of irisd's.
  absl::Status Call(const std::function<grpc::Status(Stub&, grpc::ClientContext*)>& call);

  const absl::Duration patience_;
  wire::UniqueFd session_;
  uint64_t session_id_ = 0;
  bool waits_for_socket_ = true;
  std::unique_ptr<Stub> stub_;
  size_t n_descriptors_ = 0;  // that have come, links apart
  iris::v1::JoinReply joined_;
  uint64_t k_ = 0;
  int replaced_ = 0;

  absl::Mutex mu_;
  wire::UniqueFd duplicate_ ABSL_GUARDED_BY(mu_);  // of gRPC's socket
};

}  // namespace iris::testing
