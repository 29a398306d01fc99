#include "megatron/ops/cuda/cudnn/attention_call.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace megatron::ops::cuda {
namespace {

constexpr int64_t kAlignment = 16;  // bytes that cuDNN's kernels load at once
constexpr int64_t kMostHeadDim = 256;
// Shorter sequences cost the same.
constexpr int64_t kShortest = 64;

int64_t PowerOfTwoFrom(int64_t count, int64_t least) {
  int64_t power = least;
  while (power < count) power *= 2;
  return power;
}

// Returns whether rows begin where cuDNN's kernels can load from.
bool IsAligned(const Tensor& x) {
  if (reinterpret_cast<uintptr_t>(x.raw()) % kAlignment != 0) return false;
  for (int d = 0; d + 1 < x.rank(); ++d) {
    if (x.dim(d) > 1 && x.stride(d) * SizeOf(x.dtype()) % kAlignment != 0) return false;
  }
  return true;
}

int64_t Sequences(const Attention& attention) { return attention.cu_seqlens_q.dim(0) - 1; }

// If the longest length times the number of sequences equals the total, all lengths are equal.
bool HasOneLength(const AttentionCall& call) {
  const int64_t sequences = Sequences(call.attention);
  return call.attention.max_seqlen_q * sequences == call.in.q_TGRD.dim(0) &&
         call.attention.max_seqlen_k * sequences == call.in.k_UGD.dim(0);
}

std::string WhyNotItsOptions(const Attention& attention, const AttentionInputs& in) {
  if (attention.dropout.probability > 0) return "it does not draw our dropout";
  if (in.bias_WN) return "scores have a bias";
  if (attention.softcap > 0) return "scores are capped";
  if (attention.window_size > 0) return "queries see a window";
  if (attention.place_q_T) return "sequences are here in part";
  if (attention.add_to_queries || attention.add_to_keys) return "keys come part by part";
  return "";
}

std::string WhyNotItsSequences(const AttentionCall& call) {
  const Attention& attention = call.attention;
  const bool same = attention.cu_seqlens_q.raw() == attention.cu_seqlens_k.raw();
  if (call.in.q_TGRD.numel() == 0 || call.in.k_UGD.numel() == 0) return "there are no tokens";
  if (HasOneLength(call)) {
    return attention.causal && attention.max_seqlen_q != attention.max_seqlen_k
               ? "causal queries and keys differ in number"
               : "";
  }
  // cuDNN would not give zeros for queries of a sequence without keys.
  return same ? "" : "queries and keys are of packed sequences that differ";
}

// Packed lengths differ from call to call, and making a plan takes long, so sizes are rounded up to
// few values.
void DescribePacked(const AttentionCall& call, CudnnAttention* description) {
  description->packed = true;
  description->sequences = PowerOfTwoFrom(Sequences(call.attention), 1);
  description->queries = description->keys = PowerOfTwoFrom(call.attention.max_seqlen_q, kShortest);
  description->tokens = PowerOfTwoFrom(call.in.q_TGRD.dim(0), kShortest);
}

CudnnAttention::Strides StridesOfHeads(const Tensor& x) {
  if (x.rank() == 3) return {x.stride(1), x.stride(0)};
  if (!HasOneHeadStride(x)) return {x.dim(3), x.dim(1) * x.dim(2) * x.dim(3)};  // a copy's strides
  return {x.dim(2) > 1 ? x.stride(2) : x.stride(1), x.stride(0)};
}

}  // namespace

bool HasOneHeadStride(const Tensor& x_TGRD) {
  return x_TGRD.dim(1) == 1 || x_TGRD.dim(2) == 1 ||
         x_TGRD.stride(1) == x_TGRD.dim(2) * x_TGRD.stride(2);
}

std::array<int64_t, 4> CudnnAttention::Dims(CudnnRole role) const {
  return {sequences, heads(role), length(role), width(role)};
}

std::array<int64_t, 4> CudnnAttention::StridesOf(CudnnRole role) const {
  // Kernels of cuDNN before 9.26 take the log-sum-exp for compact, whatever its strides, unless it
  // is packed.
  if (role == kLse && !packed) return {query_heads * queries, queries, 1, 1};
  const Strides& of = strides[role];
  return {length(role) * of.token, of.head, of.token, 1};
}

bool operator<(const CudnnAttention& x, const CudnnAttention& y) {
  const auto key = [](const CudnnAttention& a) {
    return std::tie(a.dtype, a.backward, a.deterministic, a.causal, a.scale, a.packed, a.sequences,
                    a.queries, a.keys, a.tokens, a.query_heads, a.groups, a.head_dim, a.strides);
  };
  return key(x) < key(y);
}

std::string WhyNotCudnn(const AttentionCall& call) {
  const DType dtype = call.in.q_TGRD.dtype();
  if (dtype != DType::kBFloat16 && dtype != DType::kFloat16)
    return absl::StrCat("there is no ", Name(dtype), " kernel");
  const std::string options = WhyNotItsOptions(call.attention, call.in);
  if (!options.empty()) return options;
  const std::string sequences = WhyNotItsSequences(call);
  if (!sequences.empty()) return sequences;
  const int64_t head_dim = call.in.q_TGRD.dim(3);
  if (head_dim > kMostHeadDim || head_dim * SizeOf(dtype) % kAlignment != 0)
    return absl::StrCat("there is no kernel for heads of ", head_dim);
  for (const Tensor* x :
       {&call.in.q_TGRD, &call.in.k_UGD, &call.in.v_UGE, &call.out_TGRE, &call.dout_TGRE,
        &call.gradients.q_TGRD, &call.gradients.k_UGD, &call.gradients.v_UGE}) {
    if (x->empty()) continue;
    if (x->dtype() != dtype) return "results are of another dtype than inputs";
    if (!IsAligned(*x)) return "rows do not begin at multiples of 16 bytes";
  }
  if (call.in.v_UGE.dim(2) != head_dim)
    return absl::StrCat("values are ", call.in.v_UGE.dim(2), " wide, keys ", head_dim);
  for (const Tensor* x : {&call.out_TGRE, &call.dout_TGRE}) {
    if (!x->empty() && !HasOneHeadStride(*x)) return "heads of the output lie in groups";
  }
  return call.lse_TGR.is_contiguous() ? "" : "the log-sum-exp is not contiguous";
}

CudnnAttention Describe(const AttentionCall& call) {
  const Attention& attention = call.attention;
  const Tensor& q = call.in.q_TGRD;
  CudnnAttention description;
  description.dtype = q.dtype();
  description.backward = call.backward();
  description.deterministic =
      call.backward() && attention.kernels.Has(AttentionKernel::kCudnnDeterministic);
  description.causal = attention.causal;
  description.scale = attention.scale;
  description.query_heads = q.dim(1) * q.dim(2);
  description.groups = q.dim(1);
  description.head_dim = q.dim(3);
  CHECK_GE(attention.max_seqlen_q * Sequences(attention), q.dim(0)) << "longer than the longest";
  if (HasOneLength(call)) {
    description.sequences = Sequences(attention);
    description.queries = attention.max_seqlen_q;
    description.keys = attention.max_seqlen_k;
  } else {
    DescribePacked(call, &description);
  }
  const Tensor* const tensors[] = {&q,
                                   &call.in.k_UGD,
                                   &call.in.v_UGE,
                                   &call.out_TGRE,
                                   nullptr,
                                   &call.dout_TGRE,
                                   &call.gradients.q_TGRD,
                                   &call.gradients.k_UGD,
                                   &call.gradients.v_UGE};
  for (int role = 0; role < description.end_role(); ++role)
    if (tensors[role] != nullptr) description.strides[role] = StridesOfHeads(*tensors[role]);
  if (description.packed) description.strides[kLse] = {1, description.query_heads};
  return description;
}

}  // namespace megatron::ops::cuda
