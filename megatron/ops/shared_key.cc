#include "megatron/ops/shared_key.h"

#include <algorithm>
#include <cstring>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

// The number of sums that a thread forms at once.
constexpr int64_t kSums = 64;

void CheckParts(const Stream& stream, const Tensor& own_TNO, const Tensor& shared_TS,
                const Tensor& key_TN) {
  CHECK(own_TNO.rank() == 3 && shared_TS.rank() == 2 && key_TN.rank() == 3)
      << own_TNO << " " << shared_TS << " " << key_TN;
  CheckFloating(key_TN);
  const int64_t tokens = key_TN.dim(0), heads = key_TN.dim(1), shared = shared_TS.dim(1);
  CheckTensor(stream, key_TN, key_TN.dtype(), key_TN.shape());
  CheckTensor(stream, own_TNO, key_TN.dtype(), {tokens, heads, key_TN.dim(2) - shared});
  CheckTensor(stream, shared_TS, key_TN.dtype(), {tokens, shared});
  for (const Tensor* x : {&own_TNO, &shared_TS, &key_TN})
    CHECK(x->stride(-1) == 1 || x->dim(-1) <= 1)
        << "the last dim of " << *x << " is not contiguous";
}

template <typename T>
T* RowOf(const Tensor& x, int64_t token, int64_t head) {
  return static_cast<T*>(x.raw()) + token * x.stride(0) + head * x.stride(1);
}

using megatron::ToFloat;
float ToFloat(float x) { return x; }
template <typename T>
T FromFloat(float x);
template <>
float FromFloat<float>(float x) {
  return x;
}
template <>
BFloat16 FromFloat<BFloat16>(float x) {
  return ToBFloat16(x);
}
template <>
Float16 FromFloat<Float16>(float x) {
  return ToFloat16(x);
}

template <typename T>
void SumOfHeads(const Tensor& dkey_TN, int64_t first, int64_t token, const Tensor& dshared_TS) {
  T* const out = static_cast<T*>(dshared_TS.raw()) + token * dshared_TS.stride(0);
  for (int64_t begin = 0; begin < dshared_TS.dim(1); begin += kSums) {
    const int64_t count = std::min(kSums, dshared_TS.dim(1) - begin);
    float sums[kSums] = {};
    for (int64_t head = 0; head < dkey_TN.dim(1); ++head) {
      const T* const row = RowOf<T>(dkey_TN, token, head) + first + begin;
      for (int64_t i = 0; i < count; ++i) sums[i] += ToFloat(row[i]);
    }
    for (int64_t i = 0; i < count; ++i) out[begin + i] = FromFloat<T>(sums[i]);
  }
}

template <typename T>
void Join(const Stream& stream, const Tensor& own_TNO, const Tensor& shared_TS,
          const Tensor& key_TN) {
  const int64_t own = own_TNO.dim(2), shared = shared_TS.dim(1), heads = key_TN.dim(1);
  const auto bytes = [](int64_t count) { return static_cast<size_t>(count) * sizeof(T); };
  stream.pool()->ParallelFor(key_TN.dim(0), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const T* const of_all = static_cast<const T*>(shared_TS.raw()) + token * shared_TS.stride(0);
      for (int64_t head = 0; head < heads; ++head) {
        T* const key = RowOf<T>(key_TN, token, head);
        std::memcpy(key, RowOf<T>(own_TNO, token, head), bytes(own));
        std::memcpy(key + own, of_all, bytes(shared));
      }
    }
  });
}

template <typename T>
void Split(const Stream& stream, const Tensor& dkey_TN, const Tensor& down_TNO,
           const Tensor& dshared_TS) {
  const int64_t own = down_TNO.dim(2), heads = dkey_TN.dim(1);
  stream.pool()->ParallelFor(dkey_TN.dim(0), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t head = 0; head < heads; ++head) {
        std::memcpy(RowOf<T>(down_TNO, token, head), RowOf<T>(dkey_TN, token, head),
                    static_cast<size_t>(own) * sizeof(T));
      }
      SumOfHeads<T>(dkey_TN, own, token, dshared_TS);
    }
  });
}

}  // namespace

void JoinSharedKey(const Stream& stream, const Tensor& own_TNO, const Tensor& shared_TS,
                   const Tensor& key_TN) {
  CheckParts(stream, own_TNO, shared_TS, key_TN);
  if (RunsOnCuda(stream)) return OnCuda<JoinSharedKey>(stream, own_TNO, shared_TS, key_TN);
  if (!RunsOnCpu(stream)) return;
  if (SizeOf(key_TN.dtype()) == 2) return Join<uint16_t>(stream, own_TNO, shared_TS, key_TN);
  Join<float>(stream, own_TNO, shared_TS, key_TN);
}

void SplitSharedKey(const Stream& stream, const Tensor& dkey_TN, const Tensor& down_TNO,
                    const Tensor& dshared_TS) {
  CheckParts(stream, down_TNO, dshared_TS, dkey_TN);
  if (RunsOnCuda(stream)) return OnCuda<SplitSharedKey>(stream, dkey_TN, down_TNO, dshared_TS);
  if (!RunsOnCpu(stream)) return;
  switch (dkey_TN.dtype()) {
    case DType::kBFloat16:
      return Split<BFloat16>(stream, dkey_TN, down_TNO, dshared_TS);
    case DType::kFloat16:
      return Split<Float16>(stream, dkey_TN, down_TNO, dshared_TS);
    default:
      return Split<float>(stream, dkey_TN, down_TNO, dshared_TS);
  }
}

}  // namespace megatron::ops
