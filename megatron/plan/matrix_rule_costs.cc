#include "megatron/plan/matrix_rule_costs.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "megatron/plan/collective_time.h"
#include "megatron/plan/data_traffic.h"
#include "megatron/plan/shared_cores.h"

namespace megatron {
namespace {

// A matrix of a layer, one side of which is the hidden size; `width` is what the rank has of the
// other side, which is cut for `ranks` tensor-parallel ranks.
struct Matrix {
  double width = 0;
  double ranks = 1;
};

// Matrices that are one weight, which a rank keeps whole.
struct Weight {
  std::vector<Matrix> matrices;
  double elements(double hidden) const {
    double all = 0;
    for (const Matrix& matrix : matrices) all += matrix.width * hidden;
    return all;
  }
};

std::vector<Weight> DenseWeights(const PlanModel& model, const PlanLayout& layout,
                                 bool is_mixture) {
  const double t = double(layout.tp);
  const double query = model.heads() * model.head_dim() / t;
  const double key = model.kv_heads() * model.head_dim() / t;
  std::vector<Weight> weights;
  weights.push_back(layout.muon_splits_qkv ? Weight{{{query, t}, {key, t}, {key, t}}}
                                           : Weight{{{query + 2 * key, t}}});
  weights.push_back({{{query, t}}});
  const double ffn = (is_mixture ? model.shared_ffn() : model.ffn()) / t;
  if (ffn > 0) {
    weights.push_back({std::vector<Matrix>(model.is_gated() ? 2 : 1, Matrix{ffn, t})});
    weights.push_back({{{ffn, t}}});
  }
  if (is_mixture) weights.push_back({{{model.experts(), 1}}});
  return weights;
}

std::vector<Weight> ExpertWeights(const PlanModel& model, const PlanLayout& layout) {
  const double cut = double(layout.etp);
  const size_t experts = size_t(model.experts() / double(layout.ep));
  const Matrix matrix{model.expert_ffn() / cut, cut};
  return {{std::vector<Matrix>((model.is_gated() ? 2 : 1) * experts, matrix)},
          {std::vector<Matrix>(experts, matrix)}};
}

// Gram matrices, their squares, and the products of both with the matrix.
double Flops(double side, double other) { return 4 * side * side * other + 2 * side * side * side; }

class Layer {
 public:
  Layer(const Implementation& program, const PlanModel& model, const PlanLayout& layout)
      : l_(layout),
        hidden_(model.hidden()),
        shares_(program.shards_optimizer() || layout.shards_parameters) {}

  // Shares weights out, from the largest on, each to the rank that has least, and adds the work of
  // the rank that has most, or all work where ranks share out nothing: buckets have parts even
  // then. Returns the padding.
  double Add(std::vector<Weight> weights, const PlanGroup& copies) {
    const int64_t instances = l_.shards_states_over_instances ? 1 : l_.instances;
    const int64_t ranks = std::max<int64_t>(1, copies.ranks / instances);
    std::stable_sort(weights.begin(), weights.end(), [&](const Weight& a, const Weight& b) {
      return a.elements(hidden_) > b.elements(hidden_);
    });
    std::vector<std::vector<const Weight*>> parts(std::min<int64_t>(ranks, weights.size()));
    std::vector<double> sizes(parts.size());
    double all = 0;
    for (const Weight& weight : weights) {
      const size_t least = std::min_element(sizes.begin(), sizes.end()) - sizes.begin();
      sizes[least] += weight.elements(hidden_);
      parts[least].push_back(&weight);
      all += weight.elements(hidden_);
    }
    const size_t most = std::max_element(sizes.begin(), sizes.end()) - sizes.begin();
    for (size_t part = 0; part < parts.size(); ++part) {
      if (shares_ && part != most) continue;
      for (const Weight* weight : parts[part]) {
        for (const Matrix& matrix : weight->matrices) Add(matrix);
      }
    }
    return double(ranks) * sizes[most] / all;
  }

  MatrixRuleLayer Take() { return std::move(layer_); }

 private:
  void Add(const Matrix& matrix) {
    const double whole = matrix.width * matrix.ranks;
    const bool is_cut = matrix.ranks > 1;
    if (l_.is_lamb) {
      if (is_cut) AddCall(TrafficCall::kAllReduce, "norms of LAMB", matrix, 4, 2);
      return;
    }
    const double steps = double(l_.muon_steps);
    double side = std::min(matrix.width, hidden_), other = std::max(matrix.width, hidden_);
    if (is_cut && l_.muon_mode == PlanMuonMode::kDuplicated) {
      side = std::min(whole, hidden_);
      other = std::max(whole, hidden_);
      AddCall(TrafficCall::kAllGather, "matrices of Muon", matrix,
              (l_.muon_in_16_bits ? 2 : 4) * whole * hidden_, 1);
    }
    if (is_cut && l_.muon_mode == PlanMuonMode::kDistributed) {
      side = hidden_;
      other = matrix.width;
      AddCall(TrafficCall::kAllReduce, "Gram matrices of Muon", matrix, 4 * hidden_ * hidden_,
              steps);
    }
    if (is_cut && l_.muon_mode != PlanMuonMode::kBlockwise)
      AddCall(TrafficCall::kAllReduce, "norms of Muon", matrix, 4, 1);
    layer_.flops += steps * Flops(side, other);
  }

  void AddCall(TrafficCall call, const char* what, const Matrix& matrix, double bytes,
               double calls) {
    TrafficRow row;
    row.axis = TrafficAxis::kTensor;
    row.call = call;
    row.what = what;
    row.group = {int64_t(matrix.ranks), 1};
    row.bytes = bytes;
    row.calls = calls;
    layer_.traffic.push_back(std::move(row));
  }

  const PlanLayout& l_;
  const double hidden_;
  const bool shares_;
  MatrixRuleLayer layer_;
};

}  // namespace

MatrixRuleLayer MatrixRuleCosts(const Implementation& program, const PlanModel& model,
                                const PlanLayout& layout, bool is_mixture) {
  if (layout.muon_steps == 0 && !layout.is_lamb) return {};
  Layer layer(program, model, layout);
  const double dense = layer.Add(DenseWeights(model, layout, is_mixture), DenseCopies(layout));
  const double experts =
      is_mixture ? layer.Add(ExpertWeights(model, layout), ExpertCopies(layout)) : 1;
  MatrixRuleLayer costs = layer.Take();
  costs.dense_padding = dense;
  costs.expert_padding = experts;
  const int64_t instances = layout.shards_states_over_instances ? 1 : layout.instances;
  if (layout.is_lamb)
    costs.table_padding = std::max(1.0, double(DenseCopies(layout).ranks / instances));
  return costs;
}

double MatrixRuleSeconds(const Hardware& gpu, const Implementation& program, const PlanModel& model,
                         const PlanLayout& layout, bool is_mixture) {
  const MatrixRuleLayer layer = MatrixRuleCosts(program, model, layout, is_mixture);
  const double peak =
      layout.muon_in_16_bits || gpu.fp32_tflops() == 0 ? gpu.bf16_tflops() : gpu.fp32_tflops();
  const double rate =
      peak * 1e12 * RankSpeed(gpu, program, layout.gpus()) * program.product_efficiency();
  double seconds = layer.flops > 0 ? layer.flops / rate : 0;
  for (const TrafficRow& row : layer.traffic) seconds += TrafficSeconds(gpu, program, row);
  return seconds;
}

}  // namespace megatron
