// The ranks of a machine that share its cores.
//
// With no more ranks than cores each rank has as many cores as go evenly, and ranks that wait leave
// theirs idle. With more ranks those that wait leave their core to others: what counts is the work
// of all ranks, not the longest chain of it. There a pipeline leaves cores idle where too few of
// its stages have something to do.
#ifndef MEGATRON_PLAN_SHARED_CORES_H_
#define MEGATRON_PLAN_SHARED_CORES_H_

#include <cstdint>

#include "megatron/pipeline/schedule.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {

// Returns whether more ranks than cores share a processor; false for GPUs.
bool HasMoreRanksThanCores(const Hardware& hardware, int64_t ranks);

// Returns whether each of `ranks` ranks has several cores; false for GPUs.
bool HasThreads(const Hardware& hardware, int64_t ranks);

// Returns how many times the speed of one core a rank has, while it computes, where there are
// `ranks` ranks in all; 1 for a GPU.
double RankSpeed(const Hardware& hardware, const Implementation& program, int64_t ranks);

// Returns the seconds that a kernel of one of `ranks` ranks takes more than its share of the work,
// whose threads meet at its end; 0 for a rank of one core, and for a GPU.
double ThreadMeetingSeconds(const Hardware& hardware, int64_t ranks);

// Returns the share of the memory's rate that is left where `ranks` ranks hold so many bytes each,
// over which a step passes before it comes back to them; 1 for a GPU. It falls with the logarithm
// of a core's bytes.
double MemoryShareOf(const Hardware& hardware, int64_t ranks, double bytes);

// Returns the bytes of memory that each of `ranks` ranks may have: those of a GPU, or an equal part
// of what ranks of a processor share. 0: unknown.
double MemoryOfRank(const Hardware& hardware, int64_t ranks);

// Returns the hardware with no more than `cores` of its cores, which its ranks share; a GPU as it
// is.
Hardware WithFewerCores(Hardware hardware, int64_t cores);

// Returns for how many seconds of a step a core is idle, on average, because too few stages have
// something to do: the schedule is played, with passes that take `seconds` on a core of their own.
// A stage has `ranks` ranks, and ranks that have something to do share the cores evenly. What a
// stage has been sent waits for `turn` seconds before the stage goes on with it.
double IdleSecondsOfCores(const Schedule& schedule, const PartCosts& seconds, int64_t ranks,
                          int64_t cores, double turn);

// Turns the seconds of a rank that never waits for a core into those on the hardware's cores, of
// which `excess` are those of computing that stages have less on average. Cores are idle for `idle`
// seconds. It changes nothing for GPUs, and for no more ranks than cores.
void ShareCores(const Hardware& hardware, const Implementation& program, const PlanLayout& layout,
                double excess, double idle, StepSeconds* seconds);

}  // namespace megatron

#endif  // MEGATRON_PLAN_SHARED_CORES_H_
