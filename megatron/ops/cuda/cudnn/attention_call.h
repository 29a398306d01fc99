// A call of attention as cuDNN sees it: which calls it takes, and what it is told of their
// operands. Plain data: known in builds without CUDA, too.
//
// cuDNN thinks of tensors [sequences, heads, tokens, head size] with strides. Sequences of one
// length are one; those of several lengths are packed: each then has a length and an offset of its
// own in each tensor, in memory of the device, and a description that has room for them is shared
// by many calls.
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

// A call of AttentionForward, or with dout of AttentionBackward.
struct AttentionCall {
  Attention attention;
  AttentionInputs in;
  Tensor out_TGRD, lse_TGR;
  Tensor dout_TGRD;
  AttentionInputs gradients;

  bool backward() const { return !dout_TGRD.empty(); }
};

// The tensors of a call, in the order of CudnnAttention::strides; backward's are the last four.
enum CudnnRole { kQ, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kCudnnRoles };

inline bool HasKeys(CudnnRole role) {
  return role == kK || role == kV || role == kDk || role == kDv;
}

// What one plan of cuDNN's serves.
struct CudnnAttention {
  DType dtype = DType::kBFloat16;
  bool backward = false, deterministic = false;
  bool causal = true;
  float scale = 1;
  bool packed = false;
  int64_t sequences = 0;          // packed: at most
  int64_t queries = 0, keys = 0;  // of each sequence; packed: at most
  int64_t tokens = 0;             // packed: of all sequences together, at most; else 0
  int64_t query_heads = 0, groups = 0, head_dim = 0;

  struct Strides {
    int64_t head = 0, token = 0;

    friend bool operator<(const Strides& x, const Strides& y) {
      return std::tie(x.head, x.token) < std::tie(y.head, y.token);
    }
  };
  std::array<Strides, kCudnnRoles> strides{};

  int64_t heads(CudnnRole role) const { return HasKeys(role) ? groups : query_heads; }
  int64_t length(CudnnRole role) const { return HasKeys(role) ? keys : queries; }
  int64_t width(CudnnRole role) const { return role == kLse ? 1 : head_dim; }
  CudnnRole end_role() const { return backward ? kCudnnRoles : kDout; }
  // [sequences, heads, tokens, head size], and how far apart elements are in each.
  std::array<int64_t, 4> Dims(CudnnRole role) const;
  std::array<int64_t, 4> StridesOf(CudnnRole role) const;

  friend bool operator<(const CudnnAttention& x, const CudnnAttention& y);
};

// Empty: cuDNN takes the call. Else why not, for a message.
std::string WhyNotCudnn(const AttentionCall& call);

// Whether the heads of x lie at one distance from each other. cuDNN takes no others: where groups
// of queries stand with their keys and values in one projection, queries are copied together first.
bool HasOneHeadStride(const Tensor& x_TGRD);

// Of a call that cuDNN takes.
CudnnAttention Describe(const AttentionCall& call);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CUDNN_ATTENTION_CALL_H_
