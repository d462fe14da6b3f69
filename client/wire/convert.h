// The one translation between the messages of the control plane and the client's plain values.
//
// The messages are those of proto/iris/v1/heap.proto, written and read by protozero: the client
// library has no protobuf, so that a process may have any. Pure functions; thread-safe. Only irisd
// checks the arguments of a program, with the same result on every rank. Text and lists that are
// too long are cut just beyond the limit, so that irisd refuses them.
//
// Bytes from irisd are not trusted. A Decode function gives kInternal, with a text that says what
// is wrong, for bytes that are no such message, for text that is not UTF-8, and for lists longer
// than the limits of proto/wire/limits.h. Unknown fields are skipped, and an unknown state becomes
// kUnspecified, because a newer irisd may send them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/base/options.h"
#include "client/wire/job.h"
#include "client/wire/operation.h"

namespace iris::internal {

// The session that makes a call, and the job that the call concerns.
struct Asker {
  uint64_t session_id = 0;
  uint64_t job_id = 0;
};

// A session joins once: a second Join of it repeats the first, whose answer was lost.
inline constexpr uint64_t kJoinNumber = 1;
// irisd must decide within `timeout`; the timeout of the call or of the options is ignored.
std::string EncodeJoin(uint64_t session_id, const HostContextOptions& options,
                       absl::Duration timeout);
// Encodes the base at which everything is mapped, or the error.
std::string EncodeMapped(const Asker& asker, uint64_t epoch, const absl::StatusOr<uint64_t>& base);
std::string EncodeOperate(uint64_t session_id, const OperationCall& call, absl::Duration timeout);
std::string EncodeBorrow(uint64_t session_id, const HeapPart& part);
std::string EncodeGrowMapped(const Asker& asker, uint64_t grow_id, const absl::Status& mapped);
std::string EncodeAwaitBarrier(uint64_t session_id, const BarrierWait& wait);
std::string EncodeLeave(const Asker& asker);
std::string EncodeResume(uint64_t session_id, const RankIdentity& identity);
std::string EncodeWatch(const Asker& asker);
// Returns the text of an error that this rank reports: UTF-8, within the limit, and never empty,
// because an empty text means success.
std::string ToErrorText(const absl::Status& error);

absl::StatusOr<JoinedJob> DecodeJoinReply(absl::string_view bytes);
absl::StatusOr<CommittedJob> DecodeMappedReply(absl::string_view bytes);
absl::StatusOr<Outcome> DecodeOperateReply(absl::string_view bytes);
absl::StatusOr<Borrowed> DecodeBorrowReply(absl::string_view bytes);
absl::StatusOr<BarrierAnswer> DecodeAwaitBarrierReply(absl::string_view bytes);
absl::StatusOr<WatchEvent> DecodeWatchEvent(absl::string_view bytes);

}  // namespace iris::internal
