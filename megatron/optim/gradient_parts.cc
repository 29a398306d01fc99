#include "megatron/optim/gradient_parts.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/ops/optimizer.h"
#include "megatron/optim/main_replica.h"

namespace megatron {

GradientParts::GradientParts(const ParameterBuffers& buffers, const ProcessGroups& groups,
                             const Tensor& sums)
    : buffers_(buffers),
      groups_(groups),
      parts_2_(sums.Select(0, 0)),
      whole_2_(sums.Select(0, 1)),
      ended_(buffers.layout().bucket_group_of_block.size()) {}

void GradientParts::StartStep(int64_t micro_batches, float scale, bool in_order) {
  micro_batches_ = micro_batches;
  scale_ = scale;
  ended_.assign(ended_.size(), 0);
  const bool reduces_parts =
      groups_.data.size() > 1 || (ReducesEachMicroBatch() && micro_batches > 1);
  source_ = groups_.context.size() > 1      ? Source::kNone
            : reduces_parts                 ? Source::kReduced
            : micro_batches > 1 && in_order ? Source::kFirstMicroBatches
                                            : Source::kNone;
}

double GradientParts::part_share() const {
  CHECK(has_parts());
  if (source_ == Source::kReduced) return 1 / part_factor();
  return static_cast<double>(micro_batches_ / 2) / static_cast<double>(micro_batches_);
}

// The gradient of a batch is the sum of those of its parts, each of which is the part's mean
// gradient times its share.
double GradientParts::part_factor() const {
  CHECK(has_parts());
  if (source_ == Source::kFirstMicroBatches) return 1 / (part_share() * part_share());
  return static_cast<double>(groups_.data.size() * (ReducesEachMicroBatch() ? micro_batches_ : 1));
}

bool GradientParts::ReducesEachMicroBatch() const {
  return buffers_.shards(DataSharding::kGradients) || buffers_.rounds_gradients();
}

bool GradientParts::Counts(const FlatParameter& flat) const {
  const Parameter& parameter = *flat.parameter;
  const bool is_summand =
      parameter.sharding.partial.contains(Axis::kTensor) && groups_.tensor.size() > 1;
  return buffers_.bucket_of(flat).section == Section::kDense && !parameter.tied && !is_summand &&
         IsMainReplica(parameter, groups_);
}

void GradientParts::BeforeReduce(const Bucket& bucket, const Tensor& whole,
                                 const Stream& stream) const {
  if (source_ != Source::kReduced) return;
  for (int i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
    const FlatParameter& flat = buffers_.parameters()[i];
    if (!Counts(flat)) continue;
    const Tensor gradient =
        whole.Slice(0, flat.range.begin - bucket.range.begin, flat.range.end - bucket.range.begin);
    ops::SumOfSquares(stream, scale_, gradient, parts_2_);
  }
}

void GradientParts::AfterMicroBatch(int block, const Stream& stream) {
  if (source_ != Source::kFirstMicroBatches || ++ended_[block] != micro_batches_ / 2) return;
  for (const FlatParameter& flat : buffers_.parameters()) {
    if (flat.parameter->block != block || !Counts(flat)) continue;
    // Bound, wherever gradients lie between uses.
    ops::SumOfSquares(stream, scale_, flat.parameter->grad.View({flat.range.size()}), parts_2_);
  }
}

void GradientParts::AddWhole(const Tensor& scratch, const Stream& stream) const {
  if (!has_parts()) return;
  for (const FlatParameter& flat : buffers_.parameters()) {
    if (!Counts(flat)) continue;
    const FlatRange mine = MainReplicaRange(buffers_, flat, groups_);
    const int64_t most = buffers_.copies_gradients() ? scratch.numel() : mine.size();
    for (FlatRange part = {mine.begin, 0}; part.begin < mine.end; part.begin = part.end) {
      part.end = std::min(mine.end, part.begin + most);
      ops::SumOfSquares(stream, scale_,
                        buffers_.GradientsOnDevice(buffers_.bucket_of(flat), part, scratch, stream),
                        whole_2_);
    }
  }
}

}  // namespace megatron
