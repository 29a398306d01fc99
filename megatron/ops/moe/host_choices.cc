#include "megatron/ops/moe/host_choices.h"

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

void CheckChoices(const Stream& stream, const Tensor& expert_TK, const Tensor& probability_TK,
                  const Tensor& packed_TC) {
  CHECK_EQ(expert_TK.rank(), 2) << expert_TK;
  const int64_t tokens = expert_TK.dim(0), topk = expert_TK.dim(1);
  CheckContiguous(stream, expert_TK, DType::kInt32, {tokens, topk});
  CheckContiguous(stream, probability_TK, DType::kFloat32, {tokens, topk});
  CheckContiguous(stream, packed_TC, DType::kFloat32, {tokens, 2 * topk});
}

}  // namespace

void FirstChoiceOfHost(const Stream& stream, const Tensor& expert_TK, int64_t experts_per_host,
                       const Tensor& host_TK) {
  CHECK_EQ(expert_TK.rank(), 2) << expert_TK;
  CHECK_GT(experts_per_host, 0);
  CheckContiguous(stream, expert_TK, DType::kInt32, expert_TK.shape());
  CheckContiguous(stream, host_TK, DType::kInt32, expert_TK.shape());
  if (RunsOnCuda(stream))
    return OnCuda<FirstChoiceOfHost>(stream, expert_TK, experts_per_host, host_TK);
  if (!RunsOnCpu(stream)) return;
  const int64_t topk = expert_TK.dim(1);
  for (int64_t t = 0; t < expert_TK.dim(0); ++t) {
    const int32_t* const expert = expert_TK.data<int32_t>() + t * topk;
    int32_t* const host = host_TK.data<int32_t>() + t * topk;
    for (int64_t k = 0; k < topk; ++k) {
      host[k] = expert[k] < 0 ? -1 : static_cast<int32_t>(expert[k] / experts_per_host);
      for (int64_t before = 0; before < k; ++before) {
        if (host[before] == host[k]) host[k] = -1;
      }
    }
  }
}

void PackChoices(const Stream& stream, const Tensor& expert_TK, const Tensor& probability_TK,
                 const Tensor& packed_TC) {
  CheckChoices(stream, expert_TK, probability_TK, packed_TC);
  if (RunsOnCuda(stream)) return OnCuda<PackChoices>(stream, expert_TK, probability_TK, packed_TC);
  if (!RunsOnCpu(stream)) return;
  const int64_t topk = expert_TK.dim(1);
  for (int64_t i = 0; i < expert_TK.numel(); ++i) {
    float* const packed = packed_TC.data<float>() + i / topk * 2 * topk + i % topk;
    packed[0] = static_cast<float>(expert_TK.data<int32_t>()[i]);
    packed[topk] = probability_TK.data<float>()[i];
  }
}

void UnpackChoices(const Stream& stream, const Tensor& packed_TC, int64_t first,
                   int64_t experts_per_host, const Tensor& expert_TK,
                   const Tensor& probability_TK) {
  CheckChoices(stream, expert_TK, probability_TK, packed_TC);
  if (RunsOnCuda(stream)) {
    return OnCuda<UnpackChoices>(stream, packed_TC, first, experts_per_host, expert_TK,
                                 probability_TK);
  }
  if (!RunsOnCpu(stream)) return;
  const int64_t topk = expert_TK.dim(1);
  for (int64_t i = 0; i < expert_TK.numel(); ++i) {
    const float* const packed = packed_TC.data<float>() + i / topk * 2 * topk + i % topk;
    const float expert = packed[0] - static_cast<float>(first);
    const bool is_here = expert >= 0 && expert < static_cast<float>(experts_per_host);
    expert_TK.data<int32_t>()[i] = is_here ? static_cast<int32_t>(expert) : -1;
    probability_TK.data<float>()[i] = packed[topk];
  }
}

}  // namespace megatron::ops
