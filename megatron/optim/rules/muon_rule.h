// Muon (K. Jordan et al., https://kellerjordan.github.io/posts/muon/) for the matrices of hidden
// layers (Parameter::matrix), and AdamW for all other parameters, as Megatron has it.
//
// For each matrix, where g is the gradient:
//   m = β m + (1 - β) g; u = m, or with Nesterov's momentum (1 - β) g + β m
//   o = NewtonSchulz(u / ‖u‖); w = w - lr * decay * w - lr * scale * o
// where the scale depends on the numbers of rows and columns.
#ifndef MEGATRON_OPTIM_RULES_MUON_RULE_H_
#define MEGATRON_OPTIM_RULES_MUON_RULE_H_

#include <string>
#include <vector>

#include "megatron/optim/rules/adamw_rule.h"
#include "megatron/optim/rules/matrix_block.h"
#include "megatron/optim/rules/update_rule.h"

namespace megatron {

// The factor on the orthogonal matrix, with R rows (outputs) and C columns (inputs): √max(R, C),
// √(R / C) or √max(1, R / C).
enum class MuonScaleMode { kSpectral, kUnitRmsNorm, kShapeScaling };

// What tensor-parallel ranks do with a matrix of which each has a block. kBlockwise: the block
// counts as a matrix. kDuplicated: each rank gathers the matrix and does all. kDistributed: each
// rank does its block, and Gram matrices are summed over ranks.
enum class MuonTensorMode { kBlockwise, kDuplicated, kDistributed };

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = false;
  int num_ns_steps = 5;
  MuonScaleMode scale_mode = MuonScaleMode::kSpectral;
  double extra_scale_factor = 1;
  bool split_qkv = true;  // whether queries, keys and values are matrices of their own
  MuonTensorMode tensor_mode = MuonTensorMode::kBlockwise;
  DType product_dtype = DType::kBFloat16;  // type of the iteration's operands: bf16 or fp32
};

// Returns the factor of a scale mode.
double MuonScale(MuonScaleMode mode, int64_t rows, int64_t columns);

class MuonRule : public UpdateRule {
 public:
  MuonRule(const MuonOptions& options, const AdamWRule& adamw) : options_(options), adamw_(adamw) {}

  std::string name() const override { return "muon"; }
  std::vector<OptimizerState> states() const override;
  ShardUnit unit() const override { return ShardUnit::kMatrix; }
  void Update(const UpdateRange& range, const Stream& stream) const override;

 private:
  // Replaces this rank's block of a matrix, fp32, by its part of the orthogonal matrix with its
  // scale.
  void Orthogonalize(const UpdateRange& range, const MatrixBlock& block, const Tensor& u_RC,
                     const Stream& stream) const;
  void OrthogonalizeGathered(const UpdateRange& range, const MatrixBlock& block, const Tensor& x_RC,
                             const Stream& stream) const;

  const MuonOptions options_;
  const AdamWRule adamw_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_MUON_RULE_H_
