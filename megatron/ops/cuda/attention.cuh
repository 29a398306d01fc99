// Parts that the attention kernels share: their arguments, the visible keys of a query, and
// dropout.
#ifndef MEGATRON_OPS_CUDA_ATTENTION_CUH_
#define MEGATRON_OPS_CUDA_ATTENTION_CUH_

#include <cstdint>

#include "megatron/base/philox.h"
#include "megatron/ops/cuda/device.cuh"

namespace megatron::ops::cuda {

struct Operand {
  void* data = nullptr;
  bool is_fp32 = true;
  int64_t token_stride = 0, group_stride = 0, head_stride = 0;

  template <typename T>
  __device__ T* Row(int64_t token, int64_t group, int64_t head) const {
    return static_cast<T*>(data) + token * token_stride + group * group_stride + head * head_stride;
  }
};

inline Operand OperandOf(const Tensor& x) {
  return {x.raw(), x.dtype() == DType::kFloat32, x.stride(0), x.stride(1),
          x.rank() == 4 ? x.stride(2) : 0};
}

struct AttentionArgs {
  int64_t queries = 0, keys = 0, groups = 0, group_heads = 0;
  int head_dim = 0, value_dim = 0;  // widths of queries and keys, and of values and outputs
  float scale = 1;
  float softcap = 0;  // 0: none
  bool causal = true;
  int64_t window_size = 0;  // 0: none
  const int32_t *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr;
  const int32_t *place_q = nullptr, *place_k = nullptr;  // null: their indices
  int64_t sequences = 0;
  Operand q, k, v, out, lse, dout, dq, dk, dv;       // a row of lse is one float
  bool add_to_queries = false, add_to_keys = false;  // outputs that are added to are fp32
  float* delta = nullptr;                            // [T, G, R]: out . dout
  float* largest_scores = nullptr;  // [G R]: Forward raises them; null: it does not

  const float* bias = nullptr;  // [2 reach + 1, G R]; null: none
  int bias_reach = 0;
  float* bias_sums = nullptr;  // [blocks of queries, G R, 2 reach + 1]: sums of its gradient

  uint64_t dropout_seed = 0;
  uint32_t dropout_threshold = 0;  // 0: all are kept
  float dropout_scale = 1;
  int64_t first_head = 0;
  const int64_t* sample_T = nullptr;
  const int32_t* position_T = nullptr;

  __device__ float& Lse(int64_t token, int64_t group, int64_t head) const {
    return *lse.Row<float>(token, group, head);
  }
  __device__ float& Delta(int64_t token, int64_t group, int64_t head) const {
    return delta[(token * groups + group) * group_heads + head];
  }
};

// Returns a score, capped if there is a cap.
__device__ inline float Capped(const AttentionArgs& args, float score) {
  return args.softcap > 0 ? args.softcap * tanhf(score / args.softcap) : score;
}
// Returns the derivative of Capped where its result is `score`.
__device__ inline float CapSlope(const AttentionArgs& args, float score) {
  if (args.softcap == 0) return 1;
  const float tanh = score / args.softcap;
  return 1 - tanh * tanh;
}

// Raises *largest, which is not negative, to the score. Bits of positive numbers are in the order
// of the numbers, and the largest of them does not depend on the order of the calls.
__device__ inline void RaiseTo(float score, float* largest) {
  if (score > 0) atomicMax(reinterpret_cast<int*>(largest), __float_as_int(score));
}

// Returns the sequence of a token: the last one that is not empty and begins at or before the
// token.
__device__ inline int64_t SequenceOf(const int32_t* cu_seqlens, int64_t sequences, int64_t token) {
  int64_t low = 0, high = sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (cu_seqlens[middle] <= token ? low : high) = middle;
  }
  return low;
}

// The range [begin, end) of tokens that a row sees: keys of a query, or queries of a key.
struct VisibleRange {
  int64_t begin = 0, end = 0;
  int64_t first_key = 0;  // the sequence's first key
  int64_t shift = 0;      // distance from the sequence's last query to its last key
};

// Returns the first of the ascending places [begin, end) that is at least `place`.
__device__ inline int64_t FirstFrom(const int32_t* places, int64_t begin, int64_t end,
                                    int64_t place) {
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (places[middle] < place) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

__device__ inline VisibleRange KeysSeenBy(const AttentionArgs& args, int64_t query) {
  const int64_t s = SequenceOf(args.cu_seqlens_q, args.sequences, query);
  const int64_t first = args.cu_seqlens_k[s], last = args.cu_seqlens_k[s + 1];
  const int64_t shift = last - args.cu_seqlens_q[s + 1];
  if (!args.causal) return {first, last, first, shift};
  VisibleRange range = {first, last, first, shift};
  if (args.place_q != nullptr) {
    const int64_t place = args.place_q[query];
    range.end = FirstFrom(args.place_k, first, last, place + 1);
    if (args.window_size > 0)
      range.begin = FirstFrom(args.place_k, first, last, place - args.window_size);
    return range;
  }
  const int64_t own = last - (args.cu_seqlens_q[s + 1] - query);
  range.end = max(first, own + 1);
  if (args.window_size > 0) range.begin = max(first, own - args.window_size);
  return range;
}

__device__ inline VisibleRange QueriesThatSee(const AttentionArgs& args, int64_t key) {
  const int64_t s = SequenceOf(args.cu_seqlens_k, args.sequences, key);
  const int64_t first = args.cu_seqlens_q[s], last = args.cu_seqlens_q[s + 1];
  const int64_t first_key = args.cu_seqlens_k[s], shift = args.cu_seqlens_k[s + 1] - last;
  if (!args.causal) return {first, last, first_key, shift};
  VisibleRange range = {first, last, first_key, shift};
  if (args.place_k != nullptr) {
    const int64_t place = args.place_k[key];
    range.begin = FirstFrom(args.place_q, first, last, place);
    if (args.window_size > 0)
      range.end = FirstFrom(args.place_q, first, last, place + args.window_size + 1);
    return range;
  }
  const int64_t own = last - (args.cu_seqlens_k[s + 1] - key);
  range.begin = max(first, own);
  if (args.window_size > 0) range.end = min(last, max(first, own + args.window_size + 1));
  return range;
}

// The bias that is added to the scores of one head.
class HeadBias {
 public:
  __device__ HeadBias(const AttentionArgs& args, int64_t head) : args_(args), head_(head) {}

  __device__ int width() const { return 2 * args_.bias_reach + 1; }
  // The entry of the bias for the distance of a key and a query of one sequence.
  __device__ int Entry(int64_t query, int64_t key, int64_t shift) const {
    const int64_t distance = args_.place_k != nullptr
                                 ? int64_t{args_.place_k[key]} - args_.place_q[query]
                                 : key - query - shift;
    const int64_t reach = args_.bias_reach;
    return static_cast<int>(min(max(distance, -reach), reach) + reach);
  }
  __device__ float At(int64_t query, int64_t key, int64_t shift) const {
    if (args_.bias == nullptr) return 0;
    return args_.bias[Entry(query, key, shift) * args_.groups * args_.group_heads + head_];
  }

 private:
  const AttentionArgs& args_;
  const int64_t head_;
};

// The dropout of one head: multipliers of its probabilities.
class HeadDropout {
 public:
  __device__ HeadDropout(const AttentionArgs& args, int64_t head) : args_(args) {
    if (args.dropout_threshold == 0) return;
    key_ = DeriveKey(args.dropout_seed, kPhiloxDropout,
                     static_cast<uint64_t>(args.first_head + head), 0);
  }
  // `first_key` is the first key of the key's sequence.
  __device__ float Factor(int64_t query, int64_t key_token, int64_t first_key) const {
    if (args_.dropout_threshold == 0) return 1;
    const int64_t key = args_.place_k != nullptr ? args_.place_k[key_token] : key_token - first_key;
    const auto sample = static_cast<uint64_t>(args_.sample_T[query]);
    const PhiloxBlock words = Philox(
        key_, {{static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32),
                static_cast<uint32_t>(args_.position_T[query]), static_cast<uint32_t>(key / 4)}});
    return words.word[key % 4] >= args_.dropout_threshold ? args_.dropout_scale : 0;
  }

 private:
  const AttentionArgs& args_;
  PhiloxKey key_;
};

// The kernels of attention_tensor_core.cu. TensorCoresTake says whether they support the operands;
// it ignores null operands. Backward needs room for delta.
bool TensorCoresTake(DType dtype, const AttentionArgs& args);
void TensorCoreAttentionForward(const Stream& stream, DType dtype, const AttentionArgs& args);
void TensorCoreAttentionBackward(const Stream& stream, DType dtype, const AttentionArgs& args);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_ATTENTION_CUH_
