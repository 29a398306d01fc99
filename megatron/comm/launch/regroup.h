// How the processes of a job agree who goes on after ranks were lost, or when processes have come.
//
// They meet at numbered rendezvous of the job's store. A *member* is a rank of the world that there
// is, or was last; every other process is a *spare*. The first member that comes leads: it waits
// for the other members that are alive, decides, and writes the plan. Those whom the plan names
// make the next world, which is named by the rendezvous, so that its handshake refuses messages of
// another one. The others are spares from then on and come to the next rendezvous. Where a leader
// is lost, or the world cannot be made, members meet again at the next one. The store notices when
// a process ends that has come: it gets no place, or the world that has one for it is given up.
//
// None of them leaves the world before until all have made the next one: where only some had left
// it, two of them might come with the same rank, each of another world.
//
// PlanRegroup is the decision. Ranks that hold the same weights are *copies*; those that hold one
// whole model between them are a *replica*. A replica that has lost a rank goes on only if another
// process takes that place. Where copies have shared out their state, each *part* of it is in the
// memory of one of them or of several.
#ifndef MEGATRON_COMM_LAUNCH_REGROUP_H_
#define MEGATRON_COMM_LAUNCH_REGROUP_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/comm/store/store.h"

namespace megatron {

// A part of the state of a process's rank and its copies that is in the process's memory.
struct KeptPart {
  int64_t iteration = 0;  // the steps after which it was so
  int part = 0;
  int parts = 1;  // those that the state was cut into
};

// What a process says of itself when it comes.
struct Comer {
  int place = -1;  // its rank when the job was launched; -1: it was lost before it could say so
  std::string host;
  int rank = -1;  // in the world before; -1: a spare
  std::vector<KeptPart> kept;
};

struct RegroupPlan {
  bool ends = false;     // nobody goes on
  bool is_done = false;  // because the run has come to its end
  std::string reason;    // a line for people: why it ends, or who is left out and who has come
  // The steps after which ranks go on from the memory of those that have that state; -1: they go on
  // from a checkpoint.
  int64_t iteration = -1;
  int parts = 1;  // KeptPart's
  int data_size = 0;
  struct Rank {
    int comer = 0;  // which of those that came, from 1
    int place = 0;
    std::string host;
    bool has_come = false;  // it was no rank of the world before
  };
  std::vector<Rank> ranks;  // by rank of the next world

  // Returns the rank of a comer; -1: it is left out.
  int RankOf(int comer) const;
};

std::string EncodeRegroupPlan(const RegroupPlan& plan);
// What a process of the job has written may still be garbage: InvalidArgument.
absl::StatusOr<RegroupPlan> DecodeRegroupPlan(absl::string_view text);

struct RegroupRules {
  // The sizes of the world before; `data` is its size. `hosts` does not count, since another world
  // may have another number of them: `fits` says whether that is possible.
  ParallelSizes sizes;
  int most_data_size = 1;  // the data size at the job's launch
  int least_data_size = 1;
  std::function<bool(int64_t data_size)> fits;  // whether the configuration allows it
  bool from_checkpoint = false;                 // whether the run saves checkpoints
};

// The number of a comer is its index + 1. Whole replicas stay together and in their order; further
// ones are filled with whoever is left, at best in the place that it had. The next world has the
// greatest data size that fits, and at least two ranks.
RegroupPlan PlanRegroup(const std::vector<Comer>& comers, const RegroupRules& rules);

// One process's part in a job's rendezvous. Errors of the store are kUnavailable.
class Regroup {
 public:
  // `patience` is the longest time that a leader waits for members that seem to be alive, and the
  // processes of a plan for each other.
  Regroup(Store* store, absl::Duration patience) : store_(*store), patience_(patience) {}

  // The job's first world is made in an attempt of number 0 or, where a rank is lost before all
  // have found each other, in a later one: the process that is started in its place begins that,
  // or a rank that has waited for it in vain, and the others follow.
  absl::Status BeginAttempt();
  absl::StatusOr<int64_t> NewestAttempt();
  // Returns whether an attempt will make no world: there is a newer one, or the job has its world.
  absl::StatusOr<bool> IsOver(int64_t attempt);

  // Lets processes come to the first rendezvous. One rank of the job's first world calls it.
  absl::Status Open(int64_t attempt);
  // Returns whether that has happened, and how often a process of this place has asked.
  absl::StatusOr<bool> IsOpen();
  absl::StatusOr<int64_t> CountStarts(int place);

  // Comes as a member. `live` returns the ranks of the world before that seem to be alive; `decide`
  // makes the plan if this process leads. kAborted: the leader was lost; come again.
  absl::StatusOr<RegroupPlan> MeetAsMember(
      const Comer& me, absl::FunctionRef<std::vector<int>()> live,
      absl::FunctionRef<RegroupPlan(const std::vector<Comer>&)> decide);
  // Comes as a spare, to one rendezvous after another, until a plan names this process or ends.
  // kCancelled: `stop` has returned true, and nobody waits for this process. kUnavailable, too,
  // where all of the job's `processes` are spares: the last members were lost before they could
  // take one in.
  absl::StatusOr<RegroupPlan> MeetAsSpare(const Comer& me, int processes,
                                          absl::FunctionRef<bool()> stop);

  // Tells the others that the world of the last plan, in which this process has a place, cannot be
  // made. It changes nothing where all have made it.
  absl::Status GiveUp();
  // Returns whether another process has said so, or the one of the next rank has ended.
  absl::StatusOr<bool> IsGivenUp(const RegroupPlan& plan);
  // Says that this process has made that world, and waits until all have, or one of them gives it
  // up: false. `holds` returns whether the world has not failed since.
  absl::StatusOr<bool> Agree(const RegroupPlan& plan, absl::FunctionRef<bool()> holds);

  // Returns how many spares have come to the next rendezvous and wait there.
  absl::StatusOr<int64_t> CountWaiting();
  // Tells spares that they are not needed any more, since the run has come to its end.
  absl::Status End(absl::string_view reason);

  // The last rendezvous at which this process was: its number, which comer it was, and whether it
  // led.
  int number() const { return next_ - 1; }
  int comer() const { return comer_; }
  bool leads() const { return leads_; }

 private:
  static std::string Key(int number, absl::string_view what);
  absl::Status Come(const Comer& me);
  // Waits for one that has come without having said who it is, but no longer than the patience.
  absl::StatusOr<std::vector<Comer>> ReadComers(int number, absl::Duration patience);
  // Waits until all members that are alive have come, but no longer than the patience.
  absl::StatusOr<std::vector<Comer>> AwaitMembers(absl::FunctionRef<std::vector<int>()> live);
  // Returns nothing if the plan is not there in time.
  absl::StatusOr<std::optional<RegroupPlan>> ReadPlan(int number, absl::Duration timeout);
  // Settles what becomes of the world of the last plan, unless a process has done so before.
  absl::Status Decide(absl::string_view verdict);
  // Returns nothing if that is not settled in time.
  absl::StatusOr<std::optional<std::string>> ReadVerdict(absl::Duration timeout);
  // Gives the world up. False: all had made it before.
  absl::StatusOr<bool> GiveUpUnlessMade();

  Store& store_;
  const absl::Duration patience_;
  int next_ = 1;
  int came_to_ = 0;  // the last rendezvous to which this process came
  int comer_ = 0;
  bool leads_ = false;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_LAUNCH_REGROUP_H_
