#include "megatron/optim/data_parallel.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/bucket_ranges.h"
#include "megatron/optim/gradient_parts.h"

namespace megatron {

void DataParallel::Average(const Bucket& bucket, const Tensor& values, const Stream& stream) const {
  compressor_->Average(IndexOf(bucket), values, ShardsOf(groups_, bucket), stream);
}

void DataParallel::ForgetErrors(const Stream& stream) const { compressor_->ForgetErrors(stream); }

// With kOneBit nothing was averaged.
void DataParallel::ForgetStep() {
  if (compresses_ && !is_one_bit()) compressor_->Restart(stream_);
}

void DataParallel::SetFloat8Weights(const Float8Weights& weights, MemoryLedger* ledger) {
  if (options_.float8_param_gather && buffers_->shards(DataSharding::kStates))
    float8_gather_ = std::make_unique<Float8Gather>(weights, buffers_, ledger);
}

std::map<std::string, std::vector<float>> DataParallel::LargestFloat8Weights() const {
  if (float8_gather_ == nullptr) return {};
  return float8_gather_->Largest();
}

void DataParallel::StartStep(int64_t micro_batches, int64_t iteration, bool own_gradients,
                             const CudaEvent* gradients_read) {
  micro_batches_ = micro_batches;
  sent_ = {};
  CHECK(!own_gradients || is_one_bit());
  compresses_ = compressor_ != nullptr &&
                (is_one_bit() ? own_gradients : iteration >= options_.compression.start_iteration);
  gradients_read_ = gradients_read;
  if (gradients_read_ == nullptr) buffers_->ZeroGradients(stream_);
}

void DataParallel::ZeroGradients() {
  if (gradients_read_ == nullptr) return;
  gradients_read_->HoldBack(*stream_.cuda());
  gradients_read_ = nullptr;
  buffers_->ZeroGradients(stream_);
}

void DataParallel::Bind(Tensor Parameter::*member, const BucketGroup& bucket_group,
                        const Tensor& whole) const {
  int64_t origin = 0;
  for (const Bucket* bucket : bucket_group.buckets) {
    if (member == &Parameter::grad && IsFrozen(bucket->section)) continue;
    for (int i = bucket->first_parameter; i < bucket->last_parameter; ++i) {
      const FlatParameter& flat = buffers_->parameters()[i];
      const FlatRange range = Within(flat.range, *bucket);
      flat.parameter->*member = whole.empty()
                                    ? Tensor()
                                    : SliceOf(whole, {origin + range.begin, origin + range.end})
                                          .View(flat.parameter->sharding.local_shape);
    }
    origin += bucket->range.size();
  }
}

void DataParallel::StartGather(int index) {
  BucketGroup& bucket_group = bucket_groups_[index];
  if (bucket_group.gathered) return;
  bucket_group.weights =
      weights_pool_.Allocate(buffers_->options().model_dtype, bucket_group.elements);
  bucket_group.gather_job = Submit(bucket_group.has_secondary ? kGatherFromHost : kGather, index,
                                   options_.overlap_param_gather);
  bucket_group.has_secondary = !bucket_group.secondary.empty();
  bucket_group.gathered = true;
}

// The pass goes on in the direction in which it went from `block` to `next`. With overlap `next`
// has been read already.
void DataParallel::ReadWeightsAhead(int block, int next) {
  if (weight_reader_ == nullptr || next == kNone) return;
  const int here = buffers_->bucket_group_of(block), there = buffers_->bucket_group_of(next);
  if (here == there) return;
  weight_reader_->ReadAhead(options_.overlap_param_gather ? 2 * there - here : there);
}

void DataParallel::Acquire(int block, int next) {
  BucketGroup& bucket_group = bucket_groups_[buffers_->bucket_group_of(block)];
  if (fetches_weights()) {
    StartGather(buffers_->bucket_group_of(block));
    if (next != kNone && options_.overlap_param_gather)
      StartGather(buffers_->bucket_group_of(next));
    ReadWeightsAhead(block, next);
  }
  WaitFor(kGather, bucket_group.gather_job);
  if (fetches_weights() && bucket_group.users++ == 0)
    Bind(&Parameter::data, bucket_group, bucket_group.weights.tensor);
}

void DataParallel::Release(int block) {
  if (!fetches_weights()) return;
  BucketGroup& bucket_group = bucket_groups_[buffers_->bucket_group_of(block)];
  CHECK_GT(bucket_group.users, 0) << block;
  if (--bucket_group.users > 0) return;
  Bind(&Parameter::data, bucket_group, Tensor());
  weights_pool_.Free(&bucket_group.weights);
  bucket_group.gathered = false;
}

// Backward takes the blocks of a part of the model in descending order.
void DataParallel::StartBringingSum(int index) {
  if (index < 0 || !is_alone_ || shards_gradients() || rounds_sums() ||
      !options_.overlap_grad_reduce)
    return;
  BucketGroup& bucket_group = bucket_groups_[index];
  if (bucket_group.trained_elements == 0 || bucket_group.ends == 0 ||
      bucket_group.ends == micro_batches_ * bucket_group.blocks ||
      !bucket_group.gradients.tensor.empty())
    return;
  bucket_group.gradients = gradients_pool_.Allocate(DType::kFloat32, bucket_group.trained_elements);
  bucket_group.sum_job = Submit(kBringSum, index, /*overlap=*/true);
  bucket_group.brings_sum = true;
}

void DataParallel::BeginGradients(int block) {
  ZeroGradients();
  if (!pools_gradients()) return;
  const int index = buffers_->bucket_group_of(block);
  BucketGroup& bucket_group = bucket_groups_[index];
  if (bucket_group.trained_elements == 0) return;
  if (bucket_group.brings_sum) {
    WaitFor(kBringSum, bucket_group.sum_job);
    bucket_group.brings_sum = false;
    Bind(&Parameter::grad, bucket_group, bucket_group.gradients.tensor);
    return StartBringingSum(index - 1);
  }
  if (!bucket_group.gradients.tensor.empty()) {
    // The bucket group is begun and not ended, or its reduction for the micro-batch before is under
    // way.
    const auto reducing =
        std::any_of(reductions_.begin(), reductions_.end(),
                    [&](const InFlight& reduction) { return reduction.bucket_group == index; });
    if (!reducing) return;
    LimitReductions(0);
  }
  bucket_group.gradients = gradients_pool_.Allocate(DType::kFloat32, bucket_group.trained_elements);
  if (shards_gradients() || rounds_sums() || bucket_group.ends == 0) {
    ops::Zero(stream_, bucket_group.gradients.tensor);
  } else {
    BringSum(bucket_group, stream_);
  }
  Bind(&Parameter::grad, bucket_group, bucket_group.gradients.tensor);
  StartBringingSum(index - 1);
}

void DataParallel::EndGradients(int block) {
  if (!trains_block_[block]) return;
  const int index = buffers_->bucket_group_of(block);
  BucketGroup& bucket_group = bucket_groups_[index];
  ++bucket_group.ends;
  CHECK_LE(bucket_group.ends, micro_batches_ * bucket_group.blocks) << "block " << block;
  if (parts_ != nullptr) parts_->AfterMicroBatch(block, stream_);
  if (pools_gradients()) {
    Bind(&Parameter::grad, bucket_group, Tensor());
    StartReduce(index);
  } else if (options_.overlap_grad_reduce &&
             bucket_group.ends == micro_batches_ * bucket_group.blocks) {
    StartReduce(index);
  }
}

void DataParallel::StartReduce(int index) {
  BucketGroup& bucket_group = bucket_groups_[index];
  // Sums that are kept in bf16 are sent as they are.
  const bool rounds =
      options_.gradient_dtype != DType::kFloat32 && (shards_gradients() || !rounds_sums()) &&
      std::any_of(
          bucket_group.buckets.begin(), bucket_group.buckets.end(), [&](const Bucket* bucket) {
            if (IsFrozen(bucket->section)) return false;
            return ShardsOf(groups_, *bucket).size() > 1 || ReplicasOf(groups_, *bucket).size() > 1;
          });
  // The pool has room for one bucket group besides the one whose backward runs.
  if (pools_gradients() || rounds) LimitReductions(0);
  if (rounds)
    bucket_group.rounded =
        gradients_pool_.Allocate(options_.gradient_dtype, bucket_group.trained_elements);
  // Gradients that are not pooled are complete when they are reduced.
  const bool last = !pools_gradients() || bucket_group.ends == micro_batches_ * bucket_group.blocks;
  bucket_group.is_first = bucket_group.ends <= bucket_group.blocks;
  reductions_.push_back(
      {index, Submit(last ? kLastReduce : kReduce, index, options_.overlap_grad_reduce)});
  bucket_group.reduced = true;
  if (!options_.overlap_grad_reduce) LimitReductions(0);
}

void DataParallel::LimitReductions(size_t most) {
  for (; reductions_.size() > most; reductions_.erase(reductions_.begin())) {
    BucketGroup& bucket_group = bucket_groups_[reductions_.front().bucket_group];
    WaitFor(kReduce, reductions_.front().job);
    gradients_pool_.Free(&bucket_group.gradients);
    gradients_pool_.Free(&bucket_group.rounded);
  }
}

// Does the sums that are one parameter's own: over the axes in which it is partial, and over the
// stages that share it. What an element becomes as a code, and whether it is one of the largest,
// depends on the elements around it. Tensor-parallel ranks have other parts of the weights there,
// so what they hold alike would drift apart: all of them take the sum of the first.
void DataParallel::SumPartialGradient(const FlatParameter& flat) {
  const Parameter& parameter = *flat.parameter;
  const Sharding& sharding = parameter.sharding;
  const Bucket& bucket = buffers_->bucket_of(flat);
  const FlatRange range = Common(flat.range, buffers_->reduced_range(bucket));
  if (range.size() == 0) return;  // the same on all ranks of these groups
  const ProcessGroup& tensor = sharding.expert_grid ? groups_.expert_tensor
                               : sharding.tensor_replicas > 1
                                   ? groups_.TensorReplicas(sharding.tensor_replicas)
                                   : groups_.tensor;
  const bool is_partial = sharding.partial.contains(Axis::kTensor);
  const CompressionType compression =
      compresses_ ? options_.compression.type : CompressionType::kNone;
  // Ranks that compute with other codes of a weight have other gradients, too.
  const bool depends_on_others =
      quantizes_weights() || quantizes_gradients() || compression == CompressionType::kInt8 ||
      compression == CompressionType::kTopK || compression == CompressionType::kThreshold;
  const bool may_drift = depends_on_others && tensor.size() > 1 && !is_partial &&
                         !sharding.sharded.contains(Axis::kTensor);
  if (!is_partial && !may_drift && !sharding.partial.contains(Axis::kExpert) && !parameter.tied)
    return;
  const Tensor stored = buffers_->Gradients(bucket, range);
  PooledTensor staged;
  if (gradients_on_host()) {
    staged = gradients_pool_.Allocate(sum_dtype(), range.size());
    CopyFromOrToHost(stored, staged.tensor, stream_);
  }
  const Tensor& gradient = gradients_on_host() ? staged.tensor : stored;
  if (is_partial) tensor.AllReduce(gradient, ReduceOp::kSum, stream_);
  if (may_drift) tensor.Broadcast(gradient, /*root=*/0, stream_);
  if (sharding.partial.contains(Axis::kExpert))
    groups_.expert.AllReduce(gradient, ReduceOp::kSum, stream_);
  if (parameter.tied) groups_.tied_embedding.AllReduce(gradient, ReduceOp::kSum, stream_);
  if (gradients_on_host()) CopyFromOrToHost(staged.tensor, stored, stream_);
  gradients_pool_.Free(&staged);
}

void DataParallel::FinalizeGradients() {
  ZeroGradients();
  for (size_t i = bucket_groups_.size(); i-- > 0;) {
    BucketGroup& bucket_group = bucket_groups_[i];
    if (bucket_group.trained_elements == 0) continue;
    if (pools_gradients()) {
      CHECK(bucket_group.ends == micro_batches_)
          << "bucket group " << i << " ended " << bucket_group.ends << " times";
    } else if (!bucket_group.reduced) {
      StartReduce(static_cast<int>(i));
    }
  }
  LimitReductions(0);
  for (BucketGroup& bucket_group : bucket_groups_) {
    bucket_group.reduced = false;
    bucket_group.ends = 0;
  }
  WaitForWeights();
  for (const FlatParameter& flat : buffers_->parameters()) SumPartialGradient(flat);
}

void DataParallel::ShareTied(const Bucket& bucket, const FlatRange& range) {
  const ProcessGroup& stages = groups_.tied_embedding;
  if (!weights_on_host())
    return stages.Broadcast(buffers_->Weights(bucket, range), /*root=*/0, stream_);
  if (stages.size() == 1) return;
  // They are fewer than the elements of a block, all of which the pool has had already.
  PooledTensor staged = weights_pool_.Allocate(buffers_->options().model_dtype, range.size());
  if (stages.rank() == 0) buffers_->CopyWeights(bucket, range, staged.tensor, stream_);
  stages.Broadcast(staged.tensor, /*root=*/0, stream_);
  if (stages.rank() != 0) buffers_->SetWeights(bucket, range, staged.tensor, stream_);
  weights_pool_.Free(&staged);
}

void DataParallel::ShareWeights() {
  const bool sharded = buffers_->shards(DataSharding::kStates);
  for (const FlatParameter& flat : buffers_->parameters()) {
    if (!flat.parameter->tied) continue;
    const Bucket& bucket = buffers_->bucket_of(flat);
    const FlatRange range = Common(flat.range, buffers_->reduced_range(bucket));
    if (range.size() > 0) ShareTied(bucket, range);
  }
  if (sharded && float8_gather_ != nullptr)
    float8_gather_->Measure(groups_.tensor, groups_.data_context, groups_.expert_data, stream_);
  if (!sharded || shards_weights()) CHECK(weights_pool_.empty());
  if (!sharded) return;
  for (size_t i = 0; i < bucket_groups_.size(); ++i) {
    bucket_groups_[i].has_secondary = false;
    const auto submit = [&](JobKind kind) {
      bucket_groups_[i].gather_job =
          Submit(kind, static_cast<int>(i), options_.overlap_param_gather);
    };
    // The lane does its jobs in order: the last one's end is that of both.
    if (shards_states_by_parts()) submit(kGatherShards);
    if (!shards_weights()) submit(kGather);
  }
}

void DataParallel::WaitForWeights() {
  for (const BucketGroup& bucket_group : bucket_groups_) WaitFor(kGather, bucket_group.gather_job);
}

WholeBlockSizes DataParallel::HighWater() const {
  return {weights_pool_.high_water(), gradients_pool_.high_water()};
}

}  // namespace megatron
