#include "client/bench/sections.h"

#include <algorithm>
#include <chrono>

#include "client/base/absl_status.h"

namespace iris::bench {

using base::ToAbsl;

absl::StatusOr<Areas> Areas::Allocate(Rank& rank, uint64_t bytes) {
  Areas areas;
  IRIS_ASSIGN_OR_RETURN(areas.source, rank.Allocate(bytes));
  IRIS_ASSIGN_OR_RETURN(areas.target, rank.Allocate(bytes));
  IRIS_ASSIGN_OR_RETURN(uint8_t* const flags, rank.Allocate(kFlags * sizeof(uint64_t)));
  IRIS_ASSIGN_OR_RETURN(uint8_t* const words, rank.Allocate(kWords * sizeof(uint64_t)));
  IRIS_ASSIGN_OR_RETURN(areas.payload, rank.Allocate(2 * kPayloadBytes));
  areas.flags = reinterpret_cast<uint64_t*>(flags);
  areas.words = reinterpret_cast<uint64_t*>(words);
  return areas;
}

uint64_t Areas::HeapBytes(uint64_t bytes) {
  constexpr uint64_t kRoom = 8 << 20;  // for the small areas, teams and `allocate`
  return 2 * bytes + kRoom;
}

absl::StatusOr<std::vector<double>> AllSamples(Rank& rank, const std::vector<double>& mine) {
  IRIS_ASSIGN_OR_RETURN(const auto all, rank.AllGather(mine));
  std::vector<double> samples;
  for (const auto& of_rank : all) samples.insert(samples.end(), of_rank.begin(), of_rank.end());
  return samples;
}

absl::StatusOr<std::vector<double>> SlowestSamples(Rank& rank, const std::vector<double>& mine) {
  IRIS_ASSIGN_OR_RETURN(const auto all, rank.AllGather(mine));
  std::vector<double> slowest = mine;
  for (const auto& of_rank : all) {
    for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], of_rank[i]);
  }
  return slowest;
}

absl::StatusOr<std::vector<double>> TimeOnStream(Rank& rank, uint32_t samples,
                                                 ccl::Communicator* comm, Stream& stream,
                                                 const std::function<Status()>& put) {
  Context& context = *rank.context();
  IRIS_ASSIGN_OR_RETURN(Event start, ToAbsl(Event::Create(context)));
  IRIS_ASSIGN_OR_RETURN(Event end, ToAbsl(Event::Create(context)));
  std::vector<double> nanoseconds;
  for (uint32_t i = 0; i < samples + 1; ++i) {
    Status status;
    if (comm != nullptr) {
      if (absl::Status met = rank.Barrier(); !met.ok()) return met;
      status = comm->Barrier(stream);
    }
    if (status.ok()) status = start.Record(stream);
    if (status.ok()) status = put();
    if (status.ok()) status = end.Record(stream);
    if (status.ok()) status = comm != nullptr ? comm->Synchronize(stream) : stream.Synchronize();
    if (!status.ok()) return ToAbsl(status);
    IRIS_ASSIGN_OR_RETURN(const std::chrono::nanoseconds took, ToAbsl(end.Since(start)));
    if (i != 0) nanoseconds.push_back(static_cast<double>(std::max<int64_t>(took.count(), 1)));
  }
  return nanoseconds;
}

}  // namespace iris::bench
