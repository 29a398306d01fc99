// The secure sum of one round at the server (federated/secure_sum.h): who is in it, what each of
// its steps waits for, and the sum of the masked vectors.
//
//   kAdvertising   Advertise      the server says when it ends: CloseStep
//   kSharing       Share          from here on a step that IsComplete() may be closed, and at the
//   kMasking       AddMasked      server's deadline any step
//   kRevealing     Reveal
//   kUnmasking     Take
//
// An island that is lost is waited for no longer, and its messages are not taken. If it has sent
// its masked vector, this stays in the sum. Errors of messages are kOutOfRange for what comes too
// late, and kInvalidArgument for what no honest island sends.
//
// Threads: one at a time.
#ifndef MEGATRON_ISLANDS_SECURE_ROUND_H_
#define MEGATRON_ISLANDS_SECURE_ROUND_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/federated/secure_sum.h"
#include "megatron/islands/island_protocol.h"

namespace megatron {

// Returns SecureSumOptions::round of this round of a server's run.
std::string SecureRoundName(uint64_t run, int64_t round);

class SecureRound {
 public:
  SecureRound(uint64_t run, int64_t round, int threshold, int64_t elements);

  SumStep step() const { return step_; }
  // The step as the island sees it: kNone where it is in no sum.
  SumStep StepOf(int island) const { return Has(island) ? step_ : SumStep::kNone; }
  // Returns whether the island has advertised and is not lost.
  bool Has(int island) const { return members_.count(island) > 0; }
  // Number of islands that have come and are not lost.
  int members() const { return static_cast<int>(members_.size()); }

  // Takes the island into the sum, again with other keys if it comes again. Returns whether it is
  // in: not if the sum is full, or has begun without it; then it is lost.
  absl::StatusOr<bool> Advertise(const Advertisement& advertisement);
  absl::Status Share(int island, const std::vector<SealedShares>& shares);
  // Returns OK if a masked vector of the island is awaited.
  absl::Status Expects(int island) const;
  // A whole masked vector.
  absl::Status AddMasked(int island, const std::vector<uint32_t>& vector);
  absl::Status Reveal(int island, const RevealedShares& revealed);
  void Lose(int island);

  // Returns whether all that the step waits for have come.
  bool IsComplete() const;
  // Ends the step without those that have not come, who are lost, and begins the next one. An error
  // ends the round without a sum, and says why.
  absl::Status CloseStep();

  // Fills what the island is told of this step.
  void Tell(int island, IslandMessage* state) const;

  // The sum, and what turns it into that of the islands' integers.
  struct Sum {
    std::vector<uint32_t> values;
    std::vector<Mask> masks;
    std::vector<int> islands;  // ascending
  };
  // At kUnmasking, once.
  Sum Take();

 private:
  absl::Status ComesInTime(int island, SumStep step) const;

  SecureSumServer server_;
  SumStep step_ = SumStep::kAdvertising;
  std::map<int, Advertisement> members_;  // those that are not lost
  std::set<int> done_;                    // those of them that have sent what this step waits for
  std::vector<Advertisement> advertised_;
  std::map<int, std::vector<SealedShares>> shares_;  // by the island that they are for
  Sum sum_;
};

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_SECURE_ROUND_H_
