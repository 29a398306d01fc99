#include "megatron/ops/sequence_part.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {

void PartOfSequences(const Stream& stream, const Tensor& cu_seqlens, int64_t begin, int64_t end,
                     const Tensor& part_cu_seqlens, const Tensor& place_T) {
  CHECK(0 <= begin && begin <= end) << begin << " " << end;
  CHECK(cu_seqlens.rank() == 1 && cu_seqlens.dim(0) >= 1) << cu_seqlens;
  CheckContiguous(stream, cu_seqlens, DType::kInt32, cu_seqlens.shape());
  CheckContiguous(stream, part_cu_seqlens, DType::kInt32, cu_seqlens.shape());
  CheckContiguous(stream, place_T, DType::kInt32, {end - begin});
  if (RunsOnCuda(stream))
    return OnCuda<PartOfSequences>(stream, cu_seqlens, begin, end, part_cu_seqlens, place_T);
  if (!RunsOnCpu(stream)) return;
  const int32_t* whole = cu_seqlens.data<int32_t>();
  int32_t *part = part_cu_seqlens.data<int32_t>(), *place = place_T.data<int32_t>();
  const int64_t count = cu_seqlens.dim(0);
  CHECK_LE(end, whole[count - 1]);
  for (int64_t s = 0; s < count; ++s)
    part[s] = static_cast<int32_t>(std::clamp<int64_t>(whole[s], begin, end) - begin);
  for (int64_t s = 0; s + 1 < count; ++s) {
    for (int32_t t = part[s]; t < part[s + 1]; ++t)
      place[t] = static_cast<int32_t>(begin + t - whole[s]);
  }
}

}  // namespace megatron::ops
