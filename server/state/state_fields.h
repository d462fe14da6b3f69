// The fields of machine_state.proto, with the member of the machine that each one stores.
#pragma once

#include <string>
#include <utility>

#include "server/job/job_machine_impl.h"
#include "server/state/machine_state.pb.h"
#include "server/state/message_fields.h"

namespace iris::server {

using JobName = std::pair<Party, std::string>;
using AbandonedEntry = std::pair<JobName, AbandonedJob>;
using RefusedEntry = std::pair<JobName, RefusedJoin>;
using DeadlineEntry = std::pair<DeadlineKey, absl::Time>;
using GaveUpEntry = std::pair<Rank, GaveUp>;
using OpensEntry = std::pair<Rank, uint64_t>;
using NodeEntry = std::pair<NodeId, JobNodes::Node>;
using SlotEntry = std::pair<uint32_t, uint64_t>;

IRIS_FIELDS(Party, state::Party, uid, container, maker);
IRIS_FIELDS(CallerInfo, state::Process, pid, party, gid, (process_start, start));
IRIS_FIELDS(Ledger::DeviceAccount, state::Device, uuid, memory_bytes, granularity_bytes,
            driver_free_bytes);
IRIS_FIELDS(Ledger, state::Devices, (devices(), all));

IRIS_FIELDS(LeaseRef, state::LeaseRef, job, rank);
IRIS_FIELDS(JobMachine::Impl::Session, state::Session, id, caller, ending, lease,
            (created, created_ns), past_job, past_status, join_number,
            (process_began, process_began_ns));
IRIS_FIELDS(JobMachine::Impl::Segment, state::Segment, (info.id, id), (info.rank, rank),
            (info.index, index), (info.offset_bytes, offset_bytes), (info.bytes, bytes), job,
            (holder.job, job_name), (holder.party, party), device_index, created, dropping,
            registered, imported);
IRIS_FIELDS(DeadlineKey, state::Deadline, job, kind, index);
IRIS_FIELDS(DeadlineEntry, state::Deadline, (first.job, job), (first.kind, kind),
            (first.index, index), (second, when_ns));

IRIS_FIELDS(GaveUpEntry, state::GaveUp, (first, rank), (second.pid, pid), (second.when, when_ns),
            (second.waited, waited_ns), (second.timed_out, timed_out));
IRIS_FIELDS(JobName, state::AbandonedJob, (first, party), (second, name));
IRIS_FIELDS(AbandonedEntry, state::AbandonedJob, (first.first, party), (first.second, name),
            (second.n_ranks, n_ranks), (second.when, when_ns), (second.gave_up, gave_up));
IRIS_FIELDS(JobName, state::RefusedJoin, (first, party), (second, name));
IRIS_FIELDS(RefusedEntry, state::RefusedJoin, (first.first, party), (first.second, name),
            (second.told, told), (second.rank, rank), (second.when, when_ns),
            (second.until, until_ns), (second.untold, untold));

IRIS_FIELDS(Lease, state::Lease, process, held, session);
IRIS_FIELDS(AwaitedBarrier, state::AwaitedBarrier, call, team, epoch, missing, only_thread, entered,
            looked);
// The row excludes `starved`.
IRIS_FIELDS(Member, state::Member, state, lease, device_index, prealloc, base, join_call,
            answered_join, mapped_calls, segments, (joined, joined_ns), keeps_memory, barriers);

IRIS_FIELDS(TensorInfo, state::Tensor, dtype, shape);
IRIS_FIELDS(OpensEntry, state::Opens, (first, rank), (second, n));
// The row excludes offset, alignment, label, `opens` and registered memory.
IRIS_FIELDS(HeapAllocation, state::Allocation, bytes, team, k, (created, created_ns), sync, freed);
IRIS_FIELDS(RegisteredMemory, state::Allocation, pieces, lead_bytes, piece_bytes);

IRIS_FIELDS(TeamInfo, state::TeamInfo, id, ranks, barrier_slot, barrier_start_epoch,
            sync_offset_bytes);
IRIS_FIELDS(OpenedInfo, state::Opened, offset_bytes, bytes, dtype, registered);
IRIS_FIELDS(Outcome, state::Outcome, k, status, (result.offset_bytes, offset_bytes),
            (result.value, value), (result.teams, teams), (result.heap_bytes, heap_bytes),
            (result.opened, opened));
// The row excludes its arguments and ranks.
IRIS_FIELDS(PendingOp, state::PendingOp, first, grown, hurried,
            (hurried_timeout, hurried_timeout_ns), (since, since_ns));
IRIS_FIELDS(GivenMemory, state::PendingOp::Asked, lead_bytes, (bytes, given_bytes), pieces);
// The row excludes its operation and history.
IRIS_FIELDS(Team, state::Team, info, position, next_k);

IRIS_FIELDS(Growth, state::Growth, id, team, bytes, mapping, segments, created, mapped, leaders_id);
IRIS_FIELDS(GrowDone, state::GrowDone, grow, published, reason);
IRIS_FIELDS(SlotEntry, state::SlotEpoch, (first, slot), (second, epoch));
IRIS_FIELDS(NodeEntry, state::Nodes::Node, (first, id), (second.state, state),
            (second.n_ranks, n_ranks), (second.name, name), (second.same_address, same_address),
            (second.lost_because, lost_because), (second.with_previous, with_previous),
            (second.fabric, fabric), (second.ranks_per_device, ranks_per_device));
// The row excludes the outbox.
IRIS_FIELDS(JobNodes, state::Nodes, own, n_local, rendezvous, secret, random, epoch, all, sent,
            heard);
// The row excludes ranks, allocations, teams, past teams and the last growth.
IRIS_FIELDS(Job, state::Job, id, name, party, state, broken_reason, epoch, heap_bytes_initial,
            heap_bytes, stride_bytes, team_sync_bytes, same_address, (created, created_ns),
            next_team, slot_epochs, growth, growth_queue, gave_up,
            (last_published, last_published_grow), moment, nodes);

IRIS_FIELDS(JobMachine::Impl, state::Counters, (next_job_, next_job), (next_segment_, next_segment),
            (next_grow_, next_grow), (stopping_, stopping));
IRIS_FIELDS(JobMachine::Impl, state::MachineState, (next_job_, next_job),
            (next_segment_, next_segment), (next_grow_, next_grow), (stopping_, stopping));

}  // namespace iris::server
