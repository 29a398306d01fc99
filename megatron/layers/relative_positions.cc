#include "megatron/layers/relative_positions.h"

#include <algorithm>
#include <cmath>

#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

int64_t RelativeBucket(const RelativePositionOptions& options, bool causal, int64_t distance) {
  const int64_t buckets = causal ? options.buckets : options.buckets / 2;
  const int64_t first = !causal && distance > 0 ? buckets : 0;
  const int64_t far = causal ? std::max<int64_t>(-distance, 0) : std::abs(distance);
  const int64_t exact = buckets / 2;
  if (far < exact) return first + far;
  const float logarithm = std::log(static_cast<float>(far) / static_cast<float>(exact)) /
                          static_cast<float>(std::log(static_cast<double>(options.max_distance) /
                                                      static_cast<double>(exact)));
  const int64_t shared = static_cast<int64_t>(logarithm * static_cast<float>(buckets - exact));
  return first + std::min(exact + shared, buckets - 1);
}

RelativePositions::RelativePositions(const TransformerOptions& options, const std::string& name,
                                     const ProcessGroup& tensor_group, Device device,
                                     MemoryLedger* ledger)
    : dtype_(options.dtype) {
  table_.name = name + ".weight";
  table_.sharding =
      SplitOverTensor({options.relative_positions.buckets, options.num_attention_heads}, 1,
                      tensor_group.size(), tensor_group.rank());
  table_.initializer = Initializer::Normal(options.init_std);
  const int64_t reach = options.relative_positions.max_distance, width = 2 * reach + 1;
  buffer_ = Buffer(device, width * SizeOf(DType::kInt32), "relative positions", ledger);
  bucket_W_ = buffer_.At(0, DType::kInt32, {width});
  if (device.type == DeviceType::kMeta) return;
  const HostMirror mirror(bucket_W_, "relative positions");
  for (int64_t w = 0; w < width; ++w) {
    mirror.host().data<int32_t>()[w] =
        static_cast<int32_t>(RelativeBucket(options.relative_positions, options.causal, w - reach));
  }
  if (device.type == DeviceType::kCpu) return;
  CudaStream cuda(device.index);
  mirror.Send(Stream::Cuda(device.index, &cuda));
}

Shape RelativePositions::bias_shape() const {
  return {bucket_W_.dim(0), table_.sharding.local_shape[1]};
}

void RelativePositions::Forward(const LayerContext& ctx, const Tensor& bias_WN) const {
  Arena::Scope scope(ctx.scratch);
  const WeightsInUse weights(ctx.blocks, table_.block);
  const Tensor rows_WN = ctx.scratch->Allocate(dtype_, bias_WN.shape(), "relative positions");
  ops::EmbeddingForward(ctx.stream, bucket_W_, table_.data, 0, /*accumulate=*/false, rows_WN);
  ops::Copy(ctx.stream, rows_WN, bias_WN);
}

void RelativePositions::Backward(const LayerContext& ctx, const Tensor& dbias_WN) {
  const GradientsInUse gradients(ctx.blocks, table_.block);
  if (table_.frozen) return;
  ops::EmbeddingBackward(ctx.stream, bucket_W_, dbias_WN, 0, table_.grad);
}

}  // namespace megatron
