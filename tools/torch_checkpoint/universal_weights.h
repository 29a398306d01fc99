// The weights of a universal checkpoint of DeepSpeed: a directory `zero` with one for each
// parameter, in which fp32.pt holds the whole of it, and exp_avg.pt and exp_avg_sq.pt Adam's
// moments. Names are those of Megatron-DeepSpeed's GPT, with pipeline stages or without, and become
// ours: "optimizer.state.exp_avg.NAME" for a moment. fp32.pt is "optimizer.state.fp32_param.NAME"
// too.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_UNIVERSAL_WEIGHTS_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_UNIVERSAL_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/torch_checkpoint/torch_weights.h"

namespace megatron {

// Returns the name here of each parameter there. kDataLoss names those without a counterpart, and
// those that have the same.
absl::StatusOr<std::map<std::string, std::string>> UniversalNames(
    const std::vector<std::string>& theirs);

class UniversalWeights : public TorchWeights {
 public:
  static absl::StatusOr<std::unique_ptr<UniversalWeights>> Open(const std::string& directory);

  std::vector<std::string> Names() const override;
  const std::vector<int64_t>* ShapeOf(absl::string_view name) const override;
  absl::Status Read(absl::string_view name, int64_t index, const Tensor& out) const override;

 private:
  struct Place {
    std::string path;
    std::vector<int64_t> shape;
  };

  UniversalWeights() = default;

  // Opens the file and notes it under this name.
  absl::Status Add(const std::string& name, const std::string& path);

  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_UNIVERSAL_WEIGHTS_H_
