// A call of attention in the terms of cuDNN: which calls it supports, and how their operands are
// described. Plain data, also used in builds without CUDA.
//
// Tensors are [sequences, heads, tokens, head dim] with strides. Sequences of one length form one
// such tensor. Sequences of several lengths are packed: each has its own length and its own offset
// in each tensor, in device memory, and many calls share a description that has room for them.
//
// The log-sum-exp of packed sequences is [tokens, heads], as the op has it. That of sequences of
// one length is a transposed copy, [sequences, heads, tokens].
#ifndef MEGATRON_OPS_CUDA_CUDNN_ATTENTION_CALL_H_
#define MEGATRON_OPS_CUDA_CUDNN_ATTENTION_CALL_H_

#include <array>
#include <cstdint>
#include <string>
#include <tuple>

#include "megatron/ops/attention.h"
#include "megatron/tensor/dtype.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops::cuda {

// A call of AttentionForward or, with dout, of AttentionBackward.
struct AttentionCall {
  Attention attention;
  AttentionInputs in;
  Tensor out_TGRE, lse_TGR;
  Tensor dout_TGRE;
  AttentionInputs gradients;

  bool backward() const { return !dout_TGRE.empty(); }
};

// The tensors of a call, in the order of CudnnAttention::strides; the last four are backward's.
enum CudnnRole { kQ, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kCudnnRoles };

inline bool HasKeys(CudnnRole role) {
  return role == kK || role == kV || role == kDk || role == kDv;
}

// The description of calls that one cuDNN plan computes.
struct CudnnAttention {
  DType dtype = DType::kBFloat16;
  bool backward = false, deterministic = false;
  bool causal = true;
  float scale = 1;
  bool packed = false;
  int64_t sequences = 0;          // if packed, the largest number
  int64_t queries = 0, keys = 0;  // per sequence; if packed, the largest number
  int64_t tokens = 0;             // if packed, the largest number in all sequences together; else 0
  int64_t query_heads = 0, groups = 0, head_dim = 0;

  struct Strides {
    int64_t head = 0, token = 0;

    friend bool operator<(const Strides& x, const Strides& y) {
      return std::tie(x.head, x.token) < std::tie(y.head, y.token);
    }
  };
  std::array<Strides, kCudnnRoles> strides{};  // the log-sum-exp has one only if packed

  int64_t heads(CudnnRole role) const { return HasKeys(role) ? groups : query_heads; }
  int64_t length(CudnnRole role) const { return HasKeys(role) ? keys : queries; }
  int64_t width(CudnnRole role) const { return role == kLse ? 1 : head_dim; }
  CudnnRole end_role() const { return backward ? kCudnnRoles : kDout; }
  // Returns [sequences, heads, tokens, head size], and how far apart elements are in each.
  std::array<int64_t, 4> Dims(CudnnRole role) const;
  std::array<int64_t, 4> StridesOf(CudnnRole role) const;

  friend bool operator<(const CudnnAttention& x, const CudnnAttention& y);
};

// Returns why cuDNN does not support the call, for a message; empty if it does.
std::string WhyNotCudnn(const AttentionCall& call);

// Returns whether the heads of x have equal distances, which cuDNN requires. If groups of queries
// stand with their keys and values in one projection, they do not, and the queries are copied
// together first.
bool HasOneHeadStride(const Tensor& x_TGRD);

// Describes a call that cuDNN supports.
CudnnAttention Describe(const AttentionCall& call);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_ATTENTION_CALL_H_
