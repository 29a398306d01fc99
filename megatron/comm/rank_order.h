// The order in which the parallel axes number the ranks of a world.
#ifndef MEGATRON_COMM_RANK_ORDER_H_
#define MEGATRON_COMM_RANK_ORDER_H_

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/tensor/axis.h"

namespace megatron {

// All axes, the one that varies fastest first, as Megatron writes them: "tp-cp-ep-dp-pp".
class RankOrder {
 public:
  // Megatron's default, "tp-cp-ep-dp-pp".
  RankOrder() = default;
  // Reads the names of all five axes with "-" between them.
  static absl::StatusOr<RankOrder> Parse(absl::string_view text);
  // Returns all 120 orders. The default is the first.
  static std::vector<RankOrder> All();

  const std::array<Axis, kNumAxes>& axes() const { return axes_; }
  std::string ToString() const;

  friend bool operator==(const RankOrder& a, const RankOrder& b) { return a.axes_ == b.axes_; }
  friend bool operator!=(const RankOrder& a, const RankOrder& b) { return !(a == b); }

 private:
  std::array<Axis, kNumAxes> axes_ = {Axis::kTensor, Axis::kContext, Axis::kExpert, Axis::kData,
                                      Axis::kPipeline};
};

}  // namespace megatron

#endif  // MEGATRON_COMM_RANK_ORDER_H_
