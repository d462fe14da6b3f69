// NewEpoch: every rank of a job has mapped every heap, and the job starts to run. Whoever adds a
// counter to a job says here what becomes of it. Pure; not thread-safe: inside the JobMachine.
//
//   what                          at a new epoch
//   number of the epoch           carried over: the ranks have mapped under it already
//   ranges of the heap            carried over, with names and what is in them: nothing that is
//                                 mapped moves. The first epoch begins with an empty heap.
//   teams: ids, ranks, areas      carried over. The first epoch makes the world's, and the own team
//                                 of every rank. Ids are never used again within a job.
//   who has what open             carried over: nothing that is mapped moves
//   a team's k                    carried over: the next operation has the next number
//   a member's k                  the team's: a call of an earlier epoch is not retried
//   outcomes and values kept      forgotten, and so are destroyed teams: nobody can retry them
//   where a barrier starts        at 0 for every team, and no slot is worn out: the epoch has
//                                 control pages of its own (CreatePages), whose words are 0
//   areas of device barriers      carried over with the heap. Their words are of no use once a
//                                 kernel was cut off in a barrier: each member clears its own
//                                 before its first barrier of the epoch, as after create_team.
//   abort word, ranks' states     as in the epoch's own status page: no abort, every rank ready
//   the job's moment              carried over: it only grows
//   why the job was broken        forgotten
//   the growth announced last     forgotten: its segments are of the heap that was mapped
//   an operation or growth        none may be under way: they were concluded when the epoch before
//   under way                     this one ended
#pragma once

#include "absl/time/time.h"
#include "server/job/job.h"

namespace iris::server {

// Makes `job` ready: its first epoch, or a later one. The ranks' states are the caller's, who also
// writes them to the status page.
void NewEpoch(Job& job, absl::Time wall);

}  // namespace iris::server
