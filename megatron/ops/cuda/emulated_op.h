// Kernels of the emulated device (//megatron/tensor:emulated_cuda): the op itself, as on the CPU,
// on memory that the host can access.
#ifndef MEGATRON_OPS_CUDA_EMULATED_OP_H_
#define MEGATRON_OPS_CUDA_EMULATED_OP_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/ops/activation_type.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/float8/flat_blocks.h"
#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/ops/gated_delta.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/moe/grouped_linear.h"
#include "megatron/ops/moe/router.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/optimizer.h"
#include "megatron/ops/state_space.h"
#include "megatron/ops/token_subset.h"
#include "megatron/tensor/emulated_cuda.h"
#include "megatron/tensor/emulated_graph.h"
#include "megatron/tensor/emulated_order.h"

namespace megatron::ops::cuda {

// View returns the operand with its tensors where the host can access them.
inline Tensor View(const Tensor& tensor) { return EmulatedOperand(tensor); }

inline Dropout View(Dropout dropout) {
  dropout.sample_T = View(dropout.sample_T);
  dropout.position_T = View(dropout.position_T);
  return dropout;
}

inline Attention View(Attention attention) {
  CHECK(!attention.kernels.Has(AttentionKernel::kCudnn) &&
        !attention.kernels.Has(AttentionKernel::kCudnnDeterministic))
      << "cuDNN is not emulated";
  attention.cu_seqlens_q = View(attention.cu_seqlens_q);
  attention.cu_seqlens_k = View(attention.cu_seqlens_k);
  attention.place_q_T = View(attention.place_q_T);
  attention.place_k_U = View(attention.place_k_U);
  attention.dropout = View(attention.dropout);
  attention.largest_scores_N = View(attention.largest_scores_N);
  return attention;
}

inline AttentionInputs View(const AttentionInputs& in) {
  return {View(in.q_TGRD), View(in.k_UGD), View(in.v_UGE), View(in.bias_WN), View(in.sink_N)};
}

inline NormTensors View(const NormTensors& tensors) {
  return {View(tensors.gamma_H), View(tensors.beta_H), View(tensors.mean_T), View(tensors.rstd_T)};
}

inline Float8Matrix View(const Float8Matrix& matrix) {
  return {matrix.format, View(matrix.codes), View(matrix.inverse_scales), matrix.scaling};
}

inline Float8Tensor View(const Float8Tensor& tensor) {
  return {tensor.format, View(tensor.codes_RC), View(tensor.codes_CS),
          View(tensor.inverse_scale_1)};
}

inline RouterUnits View(RouterUnits units) {
  units.number_T = View(units.number_T);
  return units;
}

inline RouterLosses View(RouterLosses losses) {
  losses.counts_UE = View(losses.counts_UE);
  losses.units = View(losses.units);
  losses.share_U = View(losses.share_U);
  return losses;
}

inline KeptRows View(const KeptRows& rows) {
  return {View(rows.row_K), View(rows.place_T), View(rows.bypass_T)};
}

inline KeptPart View(const KeptPart& part) {
  return {View(part.cu_seqlens), View(part.place_M), View(part.sample_M), View(part.position_M)};
}

inline CausalConvInputs View(const CausalConvInputs& in) {
  return {View(in.x_TGK), View(in.weight_GKW), View(in.bias_GK)};
}

inline GatedNorm View(GatedNorm norm) {
  norm.squares_T = View(norm.squares_T);
  norm.products_T = View(norm.products_T);
  return norm;
}

inline GatedNormInputs View(const GatedNormInputs& in) {
  return {View(in.x_TGS), View(in.z_TGS), View(in.gamma_GS)};
}

inline StateSpaceInputs View(const StateSpaceInputs& in) {
  return {View(in.x_TGRP),      View(in.b_TGN),   View(in.c_TGN), View(in.step_TGR),
          View(in.step_bias_H), View(in.a_log_H), View(in.skip_H)};
}

inline StateSpaceScratch View(const StateSpaceScratch& scratch) {
  return {View(scratch.states), View(scratch.state_gradients), View(scratch.sums)};
}

inline GatedDeltaInputs View(const GatedDeltaInputs& in) {
  return {View(in.q_TGK),     View(in.k_TGK),  View(in.v_TGRE), View(in.beta_TGR),
          View(in.decay_TGR), View(in.bias_H), View(in.a_log_H)};
}

inline GatedDeltaScratch View(const GatedDeltaScratch& scratch) {
  return {View(scratch.states),
          View(scratch.keys_THK),
          View(scratch.values_THE),
          View(scratch.state_gradients),
          View(scratch.value_gradients_THE),
          View(scratch.token_sums)};
}

inline PhiloxKey View(PhiloxKey key) { return key; }
inline SampleCut View(const SampleCut& cut) { return cut; }
inline MatrixRun View(const MatrixRun& run) { return run; }
inline Norm View(const Norm& norm) { return norm; }
inline Gate View(const Gate& gate) { return gate; }
inline VocabRange View(const VocabRange& range) { return range; }
inline Router View(const Router& router) { return router; }
inline AdamWOptions View(const AdamWOptions& options) { return options; }
inline SgdOptions View(const SgdOptions& options) { return options; }
inline LionOptions View(const LionOptions& options) { return options; }

template <typename T>
absl::Span<const T> View(absl::Span<const T> span) {
  return span;
}

template <typename Number>
std::enable_if_t<std::is_arithmetic_v<Number> || std::is_enum_v<Number>, Number> View(
    Number number) {
  return number;
}

// Kept returns an operand as a graph keeps it: the caller's elements may have changed when it is
// launched.
template <typename Operand>
Operand Kept(const Operand& operand) {
  return operand;
}
template <typename T>
std::vector<T> Kept(absl::Span<const T> span) {
  return std::vector<T>(span.begin(), span.end());
}

// The name of an op and everything that its operands say.
class OperandText {
 public:
  template <typename... Operands>
  explicit OperandText(const std::string& name, const Operands&... operands) {
    text_ << name;
    (Add(operands), ...);
  }
  std::string str() const { return text_.str(); }

 private:
  template <typename Number>
  std::enable_if_t<std::is_arithmetic_v<Number>> Add(Number number) {
    text_ << " " << number;
  }
  template <typename Enum>
  std::enable_if_t<std::is_enum_v<Enum>> Add(Enum value) {
    Add(static_cast<int>(value));
  }
  template <typename... Operands>
  void AddAll(const Operands&... operands) {
    (Add(operands), ...);
  }

  void Add(const Tensor& x) { text_ << " " << x << " at " << x.raw(); }
  void Add(const Dropout& x) {
    AddAll(x.probability, x.key.lo, x.key.hi, x.sample_T, x.position_T, x.first_column);
  }
  void Add(const Attention& x) {
    AddAll(x.kernels.first, x.kernels.second, x.scale, x.softcap, x.causal, x.window_size,
           x.place_q_T, x.place_k_U, x.cu_seqlens_q, x.cu_seqlens_k, x.max_seqlen_q, x.max_seqlen_k,
           x.dropout, x.add_to_queries, x.add_to_keys, x.largest_scores_N);
  }
  void Add(const AttentionInputs& x) { AddAll(x.q_TGRD, x.k_UGD, x.v_UGE, x.bias_WN, x.sink_N); }
  void Add(const CausalConvInputs& x) { AddAll(x.x_TGK, x.weight_GKW, x.bias_GK); }
  void Add(const GatedNorm& x) {
    AddAll(x.epsilon, x.norm_before_gate, x.squares_T, x.products_T, x.columns);
  }
  void Add(const GatedNormInputs& x) { AddAll(x.x_TGS, x.z_TGS, x.gamma_GS); }
  void Add(const StateSpaceInputs& x) {
    AddAll(x.x_TGRP, x.b_TGN, x.c_TGN, x.step_TGR, x.step_bias_H, x.a_log_H, x.skip_H);
  }
  void Add(const StateSpaceScratch& x) { AddAll(x.states, x.state_gradients, x.sums); }
  void Add(const GatedDeltaInputs& x) {
    AddAll(x.q_TGK, x.k_TGK, x.v_TGRE, x.beta_TGR, x.decay_TGR, x.bias_H, x.a_log_H);
  }
  void Add(const GatedDeltaScratch& x) {
    AddAll(x.states, x.keys_THK, x.values_THE, x.state_gradients, x.value_gradients_THE,
           x.token_sums);
  }
  void Add(const Gate& x) { AddAll(x.activation, x.limit, x.offset); }
  void Add(const Norm& x) { AddAll(x.kind, x.epsilon, x.zero_centered_gamma); }
  void Add(const NormTensors& x) { AddAll(x.gamma_H, x.beta_H, x.mean_T, x.rstd_T); }
  void Add(const Float8Matrix& x) { AddAll(x.format, x.codes, x.inverse_scales, x.scaling); }
  void Add(const Float8Tensor& x) { AddAll(x.format, x.codes_RC, x.codes_CS, x.inverse_scale_1); }
  void Add(const VocabRange& x) { AddAll(x.first_column, x.vocab_size); }
  void Add(const PhiloxKey& x) { AddAll(x.lo, x.hi); }
  void Add(const SampleCut& x) { AddAll(x.size, x.rank); }
  void Add(const RowGroup& x) { AddAll(x.expert, x.begin, x.end); }
  void Add(absl::Span<const RowGroup> groups) {
    for (const RowGroup& group : groups) Add(group);
  }
  void Add(const Router& x) {
    AddAll(x.score, x.topk, x.pre_softmax, x.scaling_factor, x.choose_by_logit, x.num_groups,
           x.group_topk, x.group_score_topk);
  }
  void Add(const RouterUnits& x) { AddAll(x.first_token, x.tokens_per_unit, x.number_T); }
  void Add(const RouterLosses& x) {
    AddAll(x.counts_UE, x.units, x.share_U, x.balance_weight, x.z_weight);
  }
  void Add(const KeptRows& x) { AddAll(x.row_K, x.place_T, x.bypass_T); }
  void Add(const KeptPart& x) { AddAll(x.cu_seqlens, x.place_M, x.sample_M, x.position_M); }

  std::ostringstream text_;
};

// The operations of a matrix product or of attention, for the emulated clock; 0 for other ops, and
// for products of experts and of 8-bit floats.
class OperationCount {
 public:
  template <typename... Operands>
  explicit OperationCount(const std::string& name, const Operands&... operands) {
    (Add(operands), ...);
    if (name.rfind("Linear", 0) == 0) count_ = OfProduct();
    if (name == "AttentionForward") count_ = 2 * pairs_ + 2 * value_pairs_;
    if (name == "AttentionBackward") count_ = 6 * pairs_ + 4 * value_pairs_;
  }
  double count() const { return count_; }

 private:
  // The first three matrices are m x k, k x n and m x n, in some order.
  double OfProduct() const {
    double square = 1;
    for (size_t i = 0; i < 3 && i < matrices_.size(); ++i) square *= matrices_[i];
    return 2 * std::sqrt(square);
  }

  template <typename Other>
  void Add(const Other&) {}
  void Add(const Tensor& x) {
    if (!x.empty() && x.rank() == 2) matrices_.push_back(static_cast<double>(x.numel()));
  }
  // Half of the pairs where positions are counted from the ends of equally long sequences.
  void Add(const Attention& x) {
    most_keys_ = static_cast<double>(x.max_seqlen_k);
    halves_ = x.causal && x.place_q_T.empty();
  }
  void Add(const AttentionInputs& in) {
    if (pairs_ > 0) return;  // the gradients
    const double keys = std::min(most_keys_, static_cast<double>(in.k_UGD.dim(0)));
    pairs_ = static_cast<double>(in.q_TGRD.numel()) * keys * (halves_ ? 0.5 : 1);
    value_pairs_ =
        pairs_ / static_cast<double>(in.q_TGRD.dim(3)) * static_cast<double>(in.v_UGE.dim(2));
  }

  double count_ = 0;
  std::vector<double> matrices_;  // numbers of elements
  double most_keys_ = 0;
  bool halves_ = false;
  // The pairs of queries and keys, for each channel of a head's keys and of its values.
  double pairs_ = 0, value_pairs_ = 0;
};

template <auto* op>
struct EmulatedOp;

template <typename... Operands, void (*op)(const Stream&, Operands...)>
struct EmulatedOp<op> {
  // Runs the op now or, if the stream is being captured, with every launch of the graph, which
  // keeps the operands by value.
  static void RunOrCapture(const Stream& stream, Operands... operands) {
    if (!IsBeingCaptured(*stream.cuda())) return RunNow(stream, operands...);
    const auto run = [stream, kept = std::make_tuple(Kept(operands)...)] {
      std::apply([&](const auto&... all) { RunNow(stream, all...); }, kept);
    };
    WriteDown(*stream.cuda(), {OperandText(CudaOpName<op>(), operands...).str(), run});
  }

  // Runs the op, also one that has operands which a graph cannot keep.
  static void RunNow(const Stream& stream, Operands... operands) {
    OrderedOperation operation(*stream.cuda(), CudaOpName<op>());
    operation.set_operations(OperationCount(CudaOpName<op>(), operands...).count());
    const auto run = [&](const auto&... views) {
      operation.Start();
      op(EmulatingStream(stream), views...);
    };
    run(View(operands)...);
  }
};

// Register each op as its own kernel. The results only serve to initialize variables.
template <auto*... ops>
bool EmulateInGraphs() {
  return (RegisterCudaKernel<ops>(EmulatedOp<ops>::RunOrCapture) && ...);
}
template <auto*... ops>
bool EmulateOutsideGraphs() {
  return (RegisterCudaKernel<ops>(EmulatedOp<ops>::RunNow) && ...);
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_EMULATED_OP_H_
