// Limits of the protocol for both sides. irisd enforces them; docs/protocol.md lists them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace iris::wire {

inline constexpr uint32_t kMaxRanks = 64;         // of one job on one node
inline constexpr uint32_t kMaxWorldRanks = 8192;  // of one job on all its nodes
// What an error says of ranks of a node that do not follow each other.
inline constexpr char kPlaceByBlock[] =
    "the ranks of a node follow each other, in the order of their local ranks: let the launcher "
    "place them so (mpirun --map-by slot, mpiexec -ppn with all ranks of a node, srun "
    "--distribution=block)";
inline constexpr uint32_t kMaxTeamsPerJob = 256;  // alive at once, the world included
// Rank r's own team, of which it is the only member, has the id kFirstOwnTeam + r.
inline constexpr uint32_t kFirstOwnTeam = 0xFFFF0000u;
inline constexpr size_t kMaxJobNameBytes = 128;
inline constexpr size_t kMaxAllocationNameBytes = 128;
inline constexpr size_t kMaxDtypeBytes = 16;
inline constexpr size_t kMaxDims = 16;
inline constexpr size_t kMaxErrorTextBytes = 1024;  // of what a client may report
inline constexpr size_t kMaxBroadcastBytes = 1 << 20;
inline constexpr size_t kMaxPeekBytes = 64 << 10;
inline constexpr uint32_t kListPageDefault = 256;  // things in a page of a listing
inline constexpr uint32_t kListPageMax = 1024;
inline constexpr size_t kMaxListBytes = 64 << 10;  // of a page's reply
inline constexpr uint32_t kMaxSegmentsPerHeap = 64;
inline constexpr size_t kFabricHandleBytes = 64;  // by which another node imports a segment
inline constexpr uint32_t kMaxAllocationsPerJob = 1 << 20;
inline constexpr uint32_t kMaxRegisteredPiecesPerJob = 1024;
inline constexpr uint64_t kMinAlignmentBytes = 1024;
inline constexpr uint64_t kMaxAlignmentBytes = 1ull << 30;
inline constexpr uint64_t kMaxHeapBytes = 1ull << 40;     // 1 TiB per rank
inline constexpr uint64_t kMaxWindowBytes = 16ull << 40;  // n_ranks * stride
// The address of the first rank's heap if it is free. AddressSanitizer does not use it.
inline constexpr uint64_t kProposedBase = 0x400000000000ull;
inline constexpr uint64_t kMaxTeamSyncBytes = 16ull << 20;
inline constexpr uint32_t kMaxDescriptorsPerFrame = 16;  // that irisd sends
inline constexpr uint32_t kMaxDescriptorsPerCall = 128;  // of memory to be registered
inline constexpr uint32_t kDescriptorWindow = 32;        // sent and not acknowledged, per session
inline constexpr size_t kMaxRpcBytes = 4 << 20;
// A request with the largest value of a broadcast.
inline constexpr size_t kMaxRequestBytes = kMaxBroadcastBytes + (64 << 10);
// Part of a request or an answer in one frame of the session socket.
inline constexpr size_t kMaxCallFrameBytes = 16 << 10;
// Calls of one session or connection at a time. Every team of a rank may be in a collective at
// once: with fewer calls than teams, ranks could wait for each other.
inline constexpr uint32_t kMaxCallsPerConnection = kMaxTeamsPerJob + 16;
inline constexpr uint32_t kMaxCallsPerTenant = 16384;
inline constexpr uint32_t kStreamCredits = 8;  // messages of a stream on their way to a reader
// Replacements for lost gRPC sockets of a session: a burst, then one in each interval.
inline constexpr uint32_t kRpcSocketBurst = 4;
inline constexpr uint32_t kRpcSocketIntervalMs = 250;

}  // namespace iris::wire
