// How the server of the outer optimizer makes one outer gradient of the updates of islands.
#ifndef MEGATRON_ISLANDS_UPDATE_SUM_H_
#define MEGATRON_ISLANDS_UPDATE_SUM_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace megatron {

// An island's update, element by element as it has sent it.
struct IslandUpdate {
  int island = 0;
  absl::Span<const float> values;
};

// Threads: one at a time.
class UpdateSum {
 public:
  virtual ~UpdateSum() = default;
  // Returns an error for an update that may not be in a sum, whose text the island is told. Called
  // once for each update that is whole.
  virtual absl::Status Check(const IslandUpdate& update) = 0;
  // Fills `gradient` from updates that are ascending by island, at least one. After an error the
  // round ends without an outer step, and all islands go on from the copy that there is.
  virtual absl::Status Sum(const std::vector<IslandUpdate>& updates,
                           absl::Span<float> gradient) = 0;
};

// The mean, in which each island weighs the same. It takes finite updates, adds them in fp32 in the
// order of islands and multiplies the sum with the reciprocal of their number: the bits of islands
// in one world (optim/outer_optimizer.h).
class MeanOfUpdates : public UpdateSum {
 public:
  absl::Status Check(const IslandUpdate& update) override;
  absl::Status Sum(const std::vector<IslandUpdate>& updates, absl::Span<float> gradient) override;
};

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_UPDATE_SUM_H_
