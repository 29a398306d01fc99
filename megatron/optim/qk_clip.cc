#include "megatron/optim/qk_clip.h"

#include <algorithm>
#include <cmath>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

constexpr char kName[] = "largest attention scores";

}  // namespace

QkClip::QkClip(const QkClipOptions& options, int64_t layers, int64_t heads,
               ParameterBuffers* buffers, MemoryLedger* ledger)
    : options_(options),
      buffers_(buffers),
      scores_(buffers->options().device, layers * heads * SizeOf(DType::kFloat32), kName, ledger),
      scores_LN_(scores_.At(0, DType::kFloat32, {layers, heads})),
      host_scores_(scores_LN_, kName) {
  CHECK(!buffers->has_host_part());
}

void QkClip::StartStep(const Stream& stream) { ops::Zero(stream, scores_LN_); }

float QkClip::Clip(const ProcessGroup& world, const Stream& stream) {
  const TraceSpan span(stream, TimeCategory::kOptimizer, "QK-clip");
  world.AllReduce(scores_LN_, ReduceOp::kMax, stream);
  host_scores_.Fetch(stream);
  if (stream.is_meta()) return 0;
  const float* const scores = host_scores_.host().data<float>();
  const float largest = *std::max_element(scores, scores + scores_LN_.numel());
  if (largest <= options_.threshold) return largest;
  for (const FlatParameter& flat : buffers_->parameters()) {
    if (flat.parameter->attention_layer.has_value()) ClipParameter(flat, stream);
  }
  return largest;
}

void QkClip::ClipParameter(const FlatParameter& flat, const Stream& stream) {
  const Sharding& sharding = flat.parameter->sharding;
  const Shape &whole = sharding.global_shape, &first = sharding.offset,
              &mine = sharding.local_shape;
  const int64_t groups = whole[0], heads = whole[1] - 2;
  const int64_t row = mine.numel() / (mine[0] * mine[1]);  // elements of a head
  const float* const scores =
      host_scores_.host().data<float>() + *flat.parameter->attention_layer * groups * heads;
  CHECK_EQ(groups * heads, scores_LN_.dim(1)) << flat.parameter->name;
  for (int64_t g = 0; g < mine[0]; ++g) {
    const float* const of_group = scores + (first[0] + g) * heads;
    const double largest = *std::max_element(of_group, of_group + heads);
    if (largest <= options_.threshold) continue;
    const double ratio = options_.threshold / largest;
    // Scales rows [begin, end) of the whole group, as far as they are in this rank's block.
    const auto scale = [&](int64_t begin, int64_t end, double exponent) {
      const int64_t from = std::clamp<int64_t>(begin - first[1], 0, mine[1]);
      const int64_t to = std::clamp<int64_t>(end - first[1], 0, mine[1]);
      ScaleElements(flat, {(g * mine[1] + from) * row, (g * mine[1] + to) * row},
                    std::pow(ratio, exponent), stream);
    };
    scale(0, heads, options_.alpha);
    scale(heads, heads + 1, 1 - options_.alpha);
  }
}

void QkClip::ScaleElements(const FlatParameter& flat, const FlatRange& of_parameter, double factor,
                           const Stream& stream) {
  const Bucket& bucket = buffers_->bucket_of(flat);
  const FlatRange here =
      Common({flat.range.begin + of_parameter.begin, flat.range.begin + of_parameter.end},
             buffers_->optimizer_range(bucket));
  if (here.size() == 0) return;
  const Tensor weights = buffers_->Weights(bucket, here);
  if (!buffers_->has_masters()) return ops::Scale(stream, static_cast<float>(factor), weights);
  const Tensor masters = buffers_->Masters(bucket, here);
  ops::Scale(stream, static_cast<float>(factor), masters);
  ops::Copy(stream, masters, weights);
}

}  // namespace megatron
