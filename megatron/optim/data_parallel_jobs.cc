// What is sent: the jobs of a DataParallel, which a lane or the caller does.
#include <optional>

#include "megatron/comm/overlap/async_group.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/bucket_ranges.h"
#include "megatron/optim/compression/quantized_collectives.h"
#include "megatron/optim/data_parallel.h"
#include "megatron/optim/gradient_parts.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// All bytes of a buffer.
Tensor Bytes(const Buffer& buffer) { return buffer.At(0, DType::kUInt8, {buffer.bytes()}); }

}  // namespace

bool DataParallel::SumCompressed(const Bucket& bucket, const Tensor& gradients,
                                 const ProcessGroup& group, const Stream& stream) {
  if (gradients_are_own()) return true;
  if (!compresses_) return false;
  const int64_t sent = compressor_->Sum(IndexOf(bucket), gradients, group, stream);
  if (options_.sent_elements_vary()) {
    sent_.sent += sent;
    sent_.all += gradients.numel();
  }
  return true;
}

bool DataParallel::SumSparseRows(const Bucket& bucket, const Tensor& gradients,
                                 const ProcessGroup& group, const Stream& stream) {
  if (&bucket != sparse_bucket_) return false;
  const FlatParameter& flat = buffers_->parameters()[bucket.first_parameter];
  const Tensor table =
      SliceOf(gradients, Within(flat.range, bucket)).View(flat.parameter->sharding.local_shape);
  const std::optional<int64_t> rows = sparse_sum_->Sum(table, gradient_messages_, group, stream);
  sent_.sent += rows.has_value() ? *rows * table.dim(1) : table.numel();
  sent_.all += table.numel();
  return rows.has_value();
}

int64_t DataParallel::Submit(JobKind kind, int index, bool overlap) {
  CommLane* const lane = LaneOf(kind);
  if (overlap && lane != nullptr) {
    return lane->Add(
        [this, kind, index](const Stream& stream) { Run(kind, index, worker_groups_, stream); });
  }
  Run(kind, index, groups_, stream_);
  return 0;
}

void DataParallel::WaitFor(JobKind kind, int64_t job) {
  CommLane* const lane = LaneOf(kind);
  if (lane == nullptr || job == 0) return;
  const TraceSpan span(stream_, TimeCategory::kDataParallel, kWaitForLane);
  lane->Wait(job);
}

void DataParallel::Run(JobKind kind, int index, const ProcessGroups& groups, const Stream& stream) {
  const BucketGroup& bucket_group = bucket_groups_[index];
  switch (kind) {
    case kReduce:
    case kLastReduce:
      return Reduce(kind, bucket_group, groups, stream);
    case kGatherShards:
      return GatherShards(bucket_group, groups, stream);
    case kGather:
      return Gather(bucket_group, groups, stream);
    case kGatherFromHost:
      return GatherFromHost(bucket_group, groups, stream);
    case kBringSum:
      return BringSum(bucket_group, stream);
  }
}

void DataParallel::Reduce(JobKind kind, const BucketGroup& bucket_group,
                          const ProcessGroups& groups, const Stream& stream) {
  ForEachTrained(bucket_group, [&](const Bucket& bucket, const FlatRange& range) {
    const Tensor whole = pools_gradients() ? SliceOf(bucket_group.gradients.tensor, range)
                                           : buffers_->Gradients(bucket, bucket.range);
    const Tensor rounded = bucket_group.rounded.tensor.empty()
                               ? Tensor()
                               : SliceOf(bucket_group.rounded.tensor, range);
    if (parts_ != nullptr) parts_->BeforeReduce(bucket, whole, stream);
    ReduceBucket(kind, bucket, whole, rounded, bucket_group.is_first, groups, stream);
  });
}

template <typename Body>
void DataParallel::ForEachTrained(const BucketGroup& bucket_group, Body body) {
  int64_t begin = 0;
  for (const Bucket* bucket : bucket_group.buckets) {
    if (IsFrozen(bucket->section)) continue;
    body(*bucket, FlatRange{begin, begin + bucket->range.size()});
    begin += bucket->range.size();
  }
}

void DataParallel::Round(const Tensor& gradients, const Tensor& rounded,
                         const Stream& stream) const {
  if (options_.gradient_scale != 1) ops::Scale(stream, options_.gradient_scale, gradients);
  ops::Copy(stream, gradients, rounded);
}

void DataParallel::Widen(const Tensor& rounded, const Tensor& gradients,
                         const Stream& stream) const {
  ops::Copy(stream, rounded, gradients);
  if (options_.gradient_scale != 1) ops::Scale(stream, 1 / options_.gradient_scale, gradients);
}

void DataParallel::ReduceBucket(JobKind kind, const Bucket& bucket, const Tensor& gradients,
                                const Tensor& rounded, bool is_first, const ProcessGroups& groups,
                                const Stream& stream) {
  Tensor whole = gradients;
  if (!shards_gradients()) {
    const Tensor stored = buffers_->Gradients(bucket, bucket.range);
    if (rounds_sums()) whole = AddToSum(gradients, stored, is_first, stream);
    if (kind == kReduce) return Keep(whole, stored, stream);
  }
  const ProcessGroup& shards = ShardsOf(groups, bucket);
  const ProcessGroup& replicas = ReplicasOf(groups, bucket);
  const bool to_shard = buffers_->shards(DataSharding::kStates);
  const FlatRange shard = Within(bucket.shard, bucket);
  const FlatRange wanted = to_shard ? shard : FlatRange{0, bucket.range.size()};
  const bool between_instances = kind == kLastReduce && replicas.size() > 1;
  const Tensor& sent = rounded.empty() ? whole : rounded;
  if (shards.size() > 1 || (between_instances && !shards_gradients())) {
    if (!rounded.empty()) Round(whole, rounded, stream);
    if (replicas.size() == 1 && (SumSparseRows(bucket, whole, shards, stream) ||
                                 SumCompressed(bucket, whole, shards, stream))) {
      // All is done.
    } else if (quantizes_gradients()) {
      QuantizedReduceScatter(whole, Bytes(gradient_messages_), shards, HostOf(groups, bucket),
                             AcrossHostsOf(groups, bucket), stream);
    } else if (to_shard) {
      shards.ReduceScatter(sent, SliceOf(sent, shard), stream);
    } else {
      shards.AllReduce(sent, ReduceOp::kSum, stream);
    }
    if (between_instances && !shards_gradients())
      SumOverInstances(bucket, SliceOf(sent, wanted), wanted, replicas, stream);
    if (!rounded.empty()) Widen(SliceOf(rounded, wanted), SliceOf(whole, wanted), stream);
  }
  if (shards_gradients()) {
    AddShardToSum(bucket, whole, rounded, is_first, between_instances, replicas, stream);
  } else {
    Keep(whole, buffers_->Gradients(bucket, bucket.range), stream);
  }
}

Tensor DataParallel::AddToSum(const Tensor& gradients, const Tensor& stored, bool is_first,
                              const Stream& stream) {
  Tensor sum = stored;
  if (gradients_on_host()) {
    sum = gradient_sum_.At(0, sum_dtype(), stored.shape());
    // Zeros, as they are on the device, and not the first summand: adding makes +0 of -0.
    if (is_first) {
      ops::Zero(stream, sum);
    } else {
      CopyFromOrToHost(stored, sum, stream);
    }
  }
  ops::Add(stream, gradients, sum);
  return sum;
}

void DataParallel::Keep(const Tensor& sum, const Tensor& stored, const Stream& stream) const {
  if (gradients_on_host()) CopyFromOrToHost(sum, stored, stream);
}

void DataParallel::AddShardToSum(const Bucket& bucket, const Tensor& whole, const Tensor& rounded,
                                 bool is_first, bool between_instances,
                                 const ProcessGroup& replicas, const Stream& stream) {
  const FlatRange shard = Within(bucket.shard, bucket);
  const Tensor stored = buffers_->Gradients(bucket, bucket.shard);
  const Tensor sum = AddToSum(SliceOf(whole, shard), stored, is_first, stream);
  if (between_instances) {
    const bool rounds = !rounded.empty() && !rounds_sums();
    const Tensor sent = rounds ? SliceOf(rounded, shard) : sum;
    if (rounds) Round(sum, sent, stream);
    SumOverInstances(bucket, sent, shard, replicas, stream);
    if (rounds) Widen(sent, sum, stream);
  }
  Keep(sum, stored, stream);
}

// Sums `gradients`, which are those of `range` of the bucket, over instances.
void DataParallel::SumOverInstances(const Bucket& bucket, const Tensor& gradients,
                                    const FlatRange& range, const ProcessGroup& replicas,
                                    const Stream& stream) {
  if (SumCompressed(bucket, gradients, replicas, stream)) return;
  if (!shards_states_by_parts()) return replicas.AllReduce(gradients, ReduceOp::kSum, stream);
  const FlatRange part = Within(bucket.part, bucket);
  replicas.ReduceScatter(
      gradients, SliceOf(gradients, {part.begin - range.begin, part.end - range.begin}), stream);
}

void DataParallel::CopyFromOrToHost(const Tensor& in, const Tensor& out, const Stream& stream) {
  if (!stream.is_meta()) EnqueueCopyOnCuda(stream.cuda(), in, out);
}

void DataParallel::GatherShards(const BucketGroup& bucket_group, const ProcessGroups& groups,
                                const Stream& stream) const {
  for (const Bucket* bucket : bucket_group.buckets) {
    if (IsFrozen(bucket->section)) continue;  // all instances have them
    ReplicasOf(groups, *bucket)
        .AllGather(buffers_->Weights(*bucket, bucket->part),
                   buffers_->Weights(*bucket, bucket->shard), stream);
  }
}

void DataParallel::Gather(const BucketGroup& bucket_group, const ProcessGroups& groups,
                          const Stream& stream) const {
  int64_t begin = 0;
  for (size_t i = 0; i < bucket_group.buckets.size(); ++i) {
    const Bucket* const bucket = bucket_group.buckets[i];
    // All ranks have them where all have all weights.
    if (IsFrozen(bucket->section) && !fetches_weights()) continue;
    const FlatRange range = {begin, begin + bucket->range.size()};
    const Tensor whole = fetches_weights() ? SliceOf(bucket_group.weights.tensor, range)
                                           : buffers_->Weights(*bucket, bucket->range);
    GatherBucket(*bucket, whole, ShardsOf(groups, *bucket), stream);
    if (!bucket_group.secondary.empty()) {
      const Tensor& part = bucket_group.secondary[i];
      const int64_t at = HostOf(groups, *bucket).rank() * part.numel();
      ops::Copy(stream, SliceOf(whole, {at, at + part.numel()}), part);
    }
    begin = range.end;
  }
}

void DataParallel::GatherBucket(const Bucket& bucket, const Tensor& whole,
                                const ProcessGroup& shards, const Stream& stream) const {
  const bool sharded = buffers_->shards(DataSharding::kStates);
  const FlatRange given = sharded ? bucket.shard : bucket.range;
  Tensor mine = SliceOf(whole, Within(given, bucket));
  if (weight_reader_ != nullptr) {
    weight_reader_->Bring(bucket, mine, stream);
  } else if (weights_on_host()) {
    CopyFromOrToHost(buffers_->Weights(bucket, given), mine, stream);
  } else {
    mine = buffers_->Weights(bucket, given);
  }
  if (!sharded) return;
  if (float8_gather_ != nullptr && float8_gather_->measured() && shards.size() > 1) {
    float8_gather_->Gather(bucket, whole, shards, stream);
  } else if (quantizes_weights() && shards.size() > 1) {
    QuantizedAllGather(mine, /*error=*/Tensor(), whole, Bytes(weight_messages_), shards, stream);
  } else {
    shards.AllGather(mine, whole, stream);
  }
}

void DataParallel::GatherFromHost(const BucketGroup& bucket_group, const ProcessGroups& groups,
                                  const Stream& stream) const {
  int64_t begin = 0;
  for (size_t i = 0; i < bucket_group.buckets.size(); ++i) {
    const Bucket& bucket = *bucket_group.buckets[i];
    const FlatRange range = {begin, begin + bucket.range.size()};
    HostOf(groups, bucket)
        .AllGather(bucket_group.secondary[i], SliceOf(bucket_group.weights.tensor, range), stream);
    begin = range.end;
  }
}

void DataParallel::BringSum(const BucketGroup& bucket_group, const Stream& stream) const {
  ForEachTrained(bucket_group, [&](const Bucket& bucket, const FlatRange& range) {
    CopyFromOrToHost(buffers_->Gradients(bucket, bucket.range),
                     SliceOf(bucket_group.gradients.tensor, range), stream);
  });
}

}  // namespace megatron
