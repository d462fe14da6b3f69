// Failures that kernels reported, for the host.
#include "iris/rounds/errors.h"

#include <cstddef>
#include <cstdint>

#include "iris/rounds/comm.h"
#include "iris/rounds/launch.h"
#include "iris/rounds/layout.h"
#include "iris/translate.h"

namespace iris::ccl {
namespace {

static_assert(offsetof(impl::Header, sequence) == kWorkspaceFinishedAt);
static_assert(offsetof(impl::Header, calling) == kWorkspaceWaitingAt);

using impl::Verdict;

PackedCall CallOf(const uint64_t* words) {
  PackedCall call;
  for (uint32_t k = 0; k < PackedCall::kWords; ++k) call.words[k] = static_cast<uint32_t>(words[k]);
  return call;
}

Mismatch UnpackMismatch(const uint64_t* words) {
  Mismatch mismatch;
  mismatch.most = words[Verdict::kMost];
  mismatch.other = words[Verdict::kOther];
  mismatch.rest = words[Verdict::kRest];
  mismatch.absent = words[Verdict::kAbsent];
  if (mismatch.most != 0) mismatch.most_call = CallOf(words + Verdict::kMostCall);
  if (mismatch.other != 0) mismatch.other_call = CallOf(words + Verdict::kOtherCall);
  if (words[Verdict::kRows] != 0) {
    const uint32_t rows = static_cast<uint32_t>(words[Verdict::kRows] - 1);
    mismatch.rows_differ = true;
    mismatch.sender = rows & 0xff;
    mismatch.receiver = rows >> 8 & 0xff;
    mismatch.sent_bytes = words[Verdict::kSent];
    mismatch.expected_bytes = words[Verdict::kExpected];
  }
  return mismatch;
}

}  // namespace

Result CheckError(const Comm& comm, ErrorInfo* info) {
  if (comm.report == nullptr) {
    if (info != nullptr) *info = {};
    return impl::Invalid("the Comm was not made by CreateComm");
  }
  const uint64_t word = __atomic_load_n(&comm.report->word, __ATOMIC_ACQUIRE);
  const StatusCode code = static_cast<StatusCode>(word & 0xff);
  if (info != nullptr) {
    *info = {};
    if (word != 0) {
      info->operation = static_cast<Operation>(word >> 8 & 0xff);
      const uint32_t member = static_cast<uint32_t>(word >> 16 & 0xff);
      if (member != 0) info->member_index = member - 1;
      info->sequence = static_cast<uint32_t>(word >> 32);
      if (code == StatusCode::kInvalidArgument) {
        info->mismatch = UnpackMismatch(comm.report->mismatch);
      } else {
        for (uint32_t k = 0; k < 2; ++k) info->detail[k] = comm.report->mismatch[k];
      }
    }
  }
  return impl::ErrorOf(code);
}

Result impl::ErrorOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return {};
    case StatusCode::kDeadlineExceeded:
      return {StatusCode::kDeadlineExceeded, "the operation waited too long for a member"};
    case StatusCode::kAborted:
      return {StatusCode::kAborted, "the operation was aborted while it waited for a member"};
    case StatusCode::kInvalidArgument:
      return Invalid("the members of the team called differently");
    case StatusCode::kOutOfRange:
      return {StatusCode::kOutOfRange, "a token's choice is no expert that it may have"};
    case StatusCode::kFailedPrecondition:
      return {StatusCode::kFailedPrecondition,
              "the workspace holds no dispatch of this config and number of tokens"};
    default:
      return {StatusCode::kInternal, "the report of a Comm is damaged"};
  }
}

Result CopyMissing(const Comm& comm, uint64_t* mask, backend::Stream& stream) {
  if (comm.team.size == 0) return impl::Invalid("the Comm was not made by CreateComm");
  const impl::Header* header =
      iris::AtOffset<impl::Header>(comm.context, comm.context.rank, comm.workspace_offset_bytes);
  return backend::CopyAsync(mask, &header->missing, sizeof(*mask), stream);
}

void ResetError(const Comm& comm) {
  if (comm.report == nullptr) return;
  for (uint64_t& word : comm.report->mismatch) word = 0;
  __atomic_store_n(&comm.report->word, uint64_t{0}, __ATOMIC_RELEASE);
}

}  // namespace iris::ccl
