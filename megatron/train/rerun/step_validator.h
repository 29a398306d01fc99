// StepValidator: computes the passes of a step again, and says whether an unexpected result is the
// run's own or an error of a machine, and of which rank.
//
//   if (validator.IsDue(iteration, first)) {
//     MEGATRON_ASSIGN_OR_RETURN(const StepFinding finding, validator.Validate(first, execute));
//   }
//
// Computing is deterministic here: a step that is computed again gives the same bits, also on a
// rank that holds the same weights. So results are compared by checksums, and any difference is an
// error.
//
// - A *transient* error does not come again: of two executions one has other results. The rank that
//   made it is the one that has given others something else, or ends with something else, although
//   it had got the same until then.
// - A *persistent* error comes each time on its rank, and not elsewhere: a replica computes the
//   samples of another one, and has other gradients.
// - A result that is the same everywhere is the run's own.
#ifndef MEGATRON_TRAIN_RERUN_STEP_VALIDATOR_H_
#define MEGATRON_TRAIN_RERUN_STEP_VALIDATOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/recorded_communicator.h"

namespace megatron {

enum class RerunMode { kDisabled, kValidateResults, kReportStats };

struct RerunOptions {
  RerunMode mode = RerunMode::kDisabled;
  // Steps whose number is a multiple of it are computed again though nothing is unexpected; 0: none
  // are.
  int64_t interval = 0;
  // A loss that is more than ten times the largest one before is unexpected, from the step on that
  // follows this many of the program; 0: none is.
  int64_t spiky_loss_after = 0;
  // Gradients that are not finite are expected, as with a dynamic loss scale; a loss is not.
  bool gradients_may_overflow = false;

  bool enabled() const { return mode != RerunMode::kDisabled; }
};

// What a rank has computed in one execution of a step's passes.
struct ExecutedStep {
  std::vector<RecordedCall> calls;
  uint32_t local = 0;    // checksum of its gradients before they are summed; 0: they are not kept
  int64_t local_at = 0;  // the moment of the record at which that was taken
  uint32_t reduced = 0;  // checksum of the gradients and losses that the update takes
  bool finite = true;    // all of these numbers are
  double loss = 0;       // the mean over the global batch
};

// How two executions of the same step differ on a rank.
struct StepDifference {
  bool any = false;
  bool is_own = false;  // this rank made the difference
  std::string where;    // the first call that has given or got something else, if there is one
};
StepDifference CompareSteps(const ExecutedStep& a, const ExecutedStep& b);

struct StepFinding {
  enum Kind {
    kNothing,     // the results are alike, and nothing was unexpected
    kOwn,         // an unexpected result that is the run's own, as far as can be told
    kTransient,   // other results came once; those in memory came twice
    kPersistent,  // a rank computes something else than others do
    kUnreliable,  // each execution has other results
  };
  Kind kind = kNothing;
  std::string message;  // a line for people; empty with kNothing

  // Whether the results must not be used.
  bool ends_the_run() const { return kind == kPersistent || kind == kUnreliable; }
};

// All ranks make the same calls; findings are the same on all.
class StepValidator {
 public:
  // `copies` are the ranks that hold the same weights, of which each may compute the samples of the
  // next one; of one rank where that can't be.
  StepValidator(const RerunOptions& options, const ProcessGroup& world, const ProcessGroup& copies);

  // Returns whether the step is to be computed again.
  absl::StatusOr<bool> IsDue(int64_t iteration, const ExecutedStep& first);

  enum Samples { kOwn, kOfNextCopy };
  using Execute = absl::FunctionRef<absl::StatusOr<ExecutedStep>(Samples samples)>;
  // Computes the step again. In the end memory holds the results of an execution on own samples.
  absl::StatusOr<StepFinding> Validate(const ExecutedStep& first, Execute execute);

 private:
  // What all ranks say of two executions.
  struct Differences {
    bool any = false;
    std::vector<std::string> culprits;  // "rank 2 on gpu08"
    std::string where;                  // of the first rank that knows
  };
  absl::StatusOr<Differences> Gather(const StepDifference& mine);
  absl::StatusOr<std::vector<std::string>> CompareCopies(uint32_t own, uint32_t others);

  const RerunOptions options_;
  const ProcessGroup world_, copies_;
  bool is_unexpected_ = false;
  int64_t steps_ = 0;  // those looked at
  double largest_loss_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RERUN_STEP_VALIDATOR_H_
