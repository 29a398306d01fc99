#include "megatron/optim/data_parallel.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/gradient_parts.h"
#include "megatron/optim/quantized_collectives.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// Returns the range counted from the bucket's begin.
FlatRange Within(const FlatRange& range, const Bucket& bucket) {
  return {range.begin - bucket.range.begin, range.end - bucket.range.begin};
}

Tensor Cut(const Tensor& flat, const FlatRange& range) {
  return flat.Slice(0, range.begin, range.end);
}

// Appends where the matrices of a parameter are in its bucket. A table of an embedding or of an
// output layer is one too; a bias of several dims, whose elements don't decay, is none.
void AppendMatrices(const FlatParameter& flat, const Bucket& bucket,
                    std::vector<MatrixPlace>* matrices) {
  const Parameter& parameter = *flat.parameter;
  const Shape& shape = parameter.sharding.local_shape;
  if (!parameter.matrix.has_value() && !(shape.rank() == 2 && parameter.weight_decay)) return;
  const int stacked = parameter.matrix.has_value() ? parameter.matrix->stacked : 0;
  int64_t count = 1;
  for (int d = 0; d < stacked; ++d) count *= shape[d];
  const int64_t columns = shape[shape.rank() - 1], rows = shape.numel() / (count * columns);
  for (int64_t i = 0; i < count; ++i) {
    matrices->push_back(
        {flat.range.begin - bucket.range.begin + i * rows * columns, rows, columns});
  }
}

// All bytes of a buffer.
Tensor Bytes(const Buffer& buffer) { return buffer.At(0, DType::kUInt8, {buffer.bytes()}); }

// The groups over which gradients and weights are sent.
constexpr ProcessGroup ProcessGroups::*kSentOver[] = {
    &ProcessGroups::data_context_shards, &ProcessGroups::data_context_replicas,
    &ProcessGroups::expert_data_shards,  &ProcessGroups::expert_data_replicas,
    &ProcessGroups::data_context_host,   &ProcessGroups::expert_data_host};

}  // namespace

DataRank DataRankOf(const ProcessGroup& shards, const ProcessGroup& replicas) {
  return {shards.size(), shards.rank(), replicas.size(), replicas.rank()};
}

absl::StatusOr<std::unique_ptr<DataParallel>> DataParallel::Create(
    const DataParallelOptions& options, const ProcessGroups& groups, const WholeBlockSizes& sizes,
    ParameterBuffers* buffers, const Stream& stream, MemoryLedger* ledger) {
  ProcessGroups worker_groups = groups;
  if ((options.overlap_grad_reduce || options.overlap_param_gather) && !stream.is_meta()) {
    for (ProcessGroup ProcessGroups::*group : kSentOver) {
      MEGATRON_ASSIGN_OR_RETURN(worker_groups.*group, CloneForLane(groups.*group));
    }
    if (options.quantized_gradients) {
      for (ProcessGroup ProcessGroups::*group :
           {&ProcessGroups::data_context_across_hosts, &ProcessGroups::expert_data_across_hosts}) {
        MEGATRON_ASSIGN_OR_RETURN(worker_groups.*group, CloneForLane(groups.*group));
      }
    }
  }
  return std::unique_ptr<DataParallel>(
      new DataParallel(options, groups, worker_groups, sizes, buffers, stream, ledger));
}

DataParallel::DataParallel(const DataParallelOptions& options, const ProcessGroups& groups,
                           const ProcessGroups& worker_groups, const WholeBlockSizes& sizes,
                           ParameterBuffers* buffers, const Stream& stream, MemoryLedger* ledger)
    : options_(options),
      groups_(groups),
      worker_groups_(worker_groups),
      buffers_(buffers),
      stream_(stream),
      weights_pool_(stream.device(), sizes.weights, "weights/gathered", ledger),
      gradients_pool_(stream.device(), sizes.gradients, "gradients/whole", ledger) {
  for (const int index : buffers->layout().bucket_group_of_block) {
    if (index >= static_cast<int>(bucket_groups_.size())) bucket_groups_.resize(index + 1);
    ++bucket_groups_[index].blocks;
  }
  for (const Bucket& bucket : buffers->buckets()) {
    const ProcessGroup& shards = ShardsOf(groups, bucket);
    CHECK_EQ(bucket.shard.size() * shards.size(), bucket.range.size()) << shards.name();
    bucket_groups_[bucket.bucket_group].buckets.push_back(&bucket);
    bucket_groups_[bucket.bucket_group].elements += bucket.range.size();
    if (!IsFrozen(bucket.section))
      bucket_groups_[bucket.bucket_group].trained_elements += bucket.range.size();
  }
  is_alone_ = std::all_of(std::begin(kSentOver), std::end(kSentOver),
                          [&](auto group) { return (groups.*group).size() == 1; });
  CHECK(!weights_on_host() || !options.float8_param_gather);
  if (options.secondary_shards && shards_weights()) AllocateSecondary(ledger);
  if (!options.sparse_table.empty()) FindSparseTable();
  AllocateMessages(ledger);
  if (weights_on_host() && shards_gradients()) {
    int64_t most = 0;
    for (const Bucket& bucket : buffers->buckets()) most = std::max(most, bucket.shard.size());
    gradient_sum_ =
        Buffer(stream.device(), most * SizeOf(DType::kFloat32), "gradients/sum", ledger);
  }
  if (options.compression.enabled()) MakeCompressor(ledger);
  if (stream.is_meta() || !(options.overlap_grad_reduce || options.overlap_param_gather)) return;
  lane_ = MakeCommLane(stream, "communication");
  if (weights_on_host() && is_alone_) gradient_lane_ = MakeCommLane(stream, "gradients");
}

DataParallel::~DataParallel() = default;

void DataParallel::AllocateSecondary(MemoryLedger* ledger) {
  const auto part_of = [&](const Bucket& bucket) {
    const ProcessGroup& host = HostOf(groups_, bucket);
    CHECK_EQ(bucket.range.size() % host.size(), 0) << host.name();
    return bucket.range.size() / host.size();
  };
  int64_t elements = 0;
  for (const Bucket& bucket : buffers_->buckets()) elements += part_of(bucket);
  const DType dtype = buffers_->options().model_dtype;
  secondary_ = Buffer(stream_.device(), elements * SizeOf(dtype), "weights/secondary", ledger);
  int64_t begin = 0;
  for (BucketGroup& bucket_group : bucket_groups_) {
    for (const Bucket* bucket : bucket_group.buckets) {
      const int64_t part = part_of(*bucket);
      bucket_group.secondary.push_back(secondary_.At(begin * SizeOf(dtype), dtype, {part}));
      begin += part;
    }
  }
}

void DataParallel::AllocateMessages(MemoryLedger* ledger) {
  int64_t weights = 0, gradients = 0;
  for (const Bucket& bucket : buffers_->buckets()) {
    const int ranks = ShardsOf(groups_, bucket).size();
    if (quantizes_weights())
      weights = std::max(weights, QuantizedAllGatherScratch(bucket.shard.size(), ranks));
    if (quantizes_gradients() && !IsFrozen(bucket.section))
      gradients = std::max(
          gradients, QuantizedReduceScatterScratch(ops::CodeBits::k4, bucket.shard.size(), ranks));
  }
  if (sparse_sum_.has_value()) gradients = std::max(gradients, sparse_sum_->scratch_bytes());
  const Device device = stream_.device();
  if (weights > 0) weight_messages_ = Buffer(device, weights, "weights/messages", ledger);
  if (gradients > 0) gradient_messages_ = Buffer(device, gradients, "gradients/messages", ledger);
}

void DataParallel::FindSparseTable() {
  CHECK(options_.gradient_dtype == DType::kFloat32 && !options_.compression.enabled() &&
        !shards_gradients());
  for (const Bucket& bucket : buffers_->buckets()) {
    const Parameter& first = *buffers_->parameters()[bucket.first_parameter].parameter;
    const ProcessGroup& shards = ShardsOf(groups_, bucket);
    if (first.name != options_.sparse_table || first.frozen || shards.size() == 1) continue;
    CHECK(bucket.last_parameter == bucket.first_parameter + 1 && !first.tied) << first.name;
    CHECK_EQ(ReplicasOf(groups_, bucket).size(), 1);
    const Shape& shape = first.sharding.local_shape;
    sparse_sum_.emplace(shape[0], shape[1], options_.most_sparse_rows, shards.size(),
                        /*everywhere=*/!buffers_->shards(DataSharding::kStates));
    sparse_bucket_ = &bucket;
  }
}

void DataParallel::MakeCompressor(MemoryLedger* ledger) {
  CHECK(options_.gradient_dtype == DType::kFloat32 && !options_.quantized_gradients &&
        !shards_states_by_parts() && buffers_->layout().trained_begin == 0);
  std::vector<CompressedSpan> spans;
  for (const Bucket& bucket : buffers_->buckets()) {
    CompressedSpan span;
    span.ranks = ReplicasOf(groups_, bucket).size();
    if (span.ranks > 1) {
      CHECK(options_.compression.type != CompressionType::kPowerSgd) << "shards cut matrices";
      span.elements = bucket.shard.size();
      span.everywhere = true;
    } else {
      span.ranks = ShardsOf(groups_, bucket).size();
      CHECK(span.ranks == 1 || !shards_gradients());
      span.elements = bucket.range.size();
      span.everywhere = !buffers_->shards(DataSharding::kStates);
    }
    if (options_.compression.type == CompressionType::kOneBit) {
      CHECK(!buffers_->shards(DataSharding::kStates) && span.ranks == ranks());
      span.tensors = TensorsOf(bucket);
    }
    for (int i = bucket.first_parameter; i < bucket.last_parameter; ++i)
      AppendMatrices(buffers_->parameters()[i], bucket, &span.matrices);
    spans.push_back(std::move(span));
  }
  compressor_ = std::make_unique<GradientCompressor>(options_.compression, std::move(spans),
                                                     stream_.device(), ledger);
}

std::vector<TensorPlaces> DataParallel::TensorsOf(const Bucket& bucket) const {
  std::vector<TensorPlaces> tensors;
  TensorPlaces cut, alike;
  for (int i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
    const FlatParameter& flat = buffers_->parameters()[i];
    const FlatRange range = Within(flat.range, bucket);
    const TensorPlace place = {range.begin, range.size()};
    const bool is_cut = flat.parameter->sharding.sharded.contains(Axis::kTensor);
    if (!options_.compression.joins_tensors) {
      tensors.push_back({place});
    } else {
      (is_cut || groups_.tensor.size() == 1 ? cut : alike).push_back(place);
    }
  }
  for (const TensorPlaces& joined : {cut, alike}) {
    if (!joined.empty()) tensors.push_back(joined);
  }
  return tensors;
}

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
      Cut(gradients, Within(flat.range, bucket)).View(flat.parameter->sharding.local_shape);
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
    const Tensor whole = pools_gradients() ? Cut(bucket_group.gradients.tensor, range)
                                           : buffers_->Gradients(bucket, bucket.range);
    const Tensor rounded =
        bucket_group.rounded.tensor.empty() ? Tensor() : Cut(bucket_group.rounded.tensor, range);
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

void DataParallel::ReduceBucket(JobKind kind, const Bucket& bucket, const Tensor& whole,
                                const Tensor& rounded, bool is_first, const ProcessGroups& groups,
                                const Stream& stream) {
  // Sums so far.
  if (!shards_gradients() && kind == kReduce)
    return CopyFromOrToHost(whole, buffers_->Gradients(bucket, bucket.range), stream);
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
      shards.ReduceScatter(sent, Cut(sent, shard), stream);
    } else {
      shards.AllReduce(sent, ReduceOp::kSum, stream);
    }
    if (between_instances && !shards_gradients())
      SumOverInstances(bucket, Cut(sent, wanted), wanted, replicas, stream);
    if (!rounded.empty()) Widen(Cut(rounded, wanted), Cut(whole, wanted), stream);
  }
  if (shards_gradients()) {
    AddToSum(bucket, whole, rounded, is_first, between_instances, replicas, stream);
  } else if (weights_on_host()) {
    CopyFromOrToHost(whole, buffers_->Gradients(bucket, bucket.range), stream);
  }
}

void DataParallel::AddToSum(const Bucket& bucket, const Tensor& whole, const Tensor& rounded,
                            bool is_first, bool between_instances, const ProcessGroup& replicas,
                            const Stream& stream) {
  const FlatRange shard = Within(bucket.shard, bucket);
  const Tensor stored = buffers_->Gradients(bucket, bucket.shard);
  Tensor sum = stored;
  if (weights_on_host()) {
    sum = gradient_sum_.At(0, DType::kFloat32, {shard.size()});
    // Zeros, as they are on the device, and not the first summand: adding makes +0 of -0.
    if (is_first) {
      ops::Zero(stream, sum);
    } else {
      CopyFromOrToHost(stored, sum, stream);
    }
  }
  ops::Add(stream, Cut(whole, shard), sum);
  if (between_instances) {
    const Tensor sent = rounded.empty() ? sum : Cut(rounded, shard);
    if (!rounded.empty()) Round(sum, sent, stream);
    SumOverInstances(bucket, sent, shard, replicas, stream);
    if (!rounded.empty()) Widen(sent, sum, stream);
  }
  if (weights_on_host()) CopyFromOrToHost(sum, stored, stream);
}

// Sums `gradients`, which are those of `range` of the bucket, over instances.
void DataParallel::SumOverInstances(const Bucket& bucket, const Tensor& gradients,
                                    const FlatRange& range, const ProcessGroup& replicas,
                                    const Stream& stream) {
  if (SumCompressed(bucket, gradients, replicas, stream)) return;
  if (!shards_states_by_parts()) return replicas.AllReduce(gradients, ReduceOp::kSum, stream);
  const FlatRange part = Within(bucket.part, bucket);
  replicas.ReduceScatter(
      gradients, Cut(gradients, {part.begin - range.begin, part.end - range.begin}), stream);
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
    const Tensor whole = fetches_weights() ? Cut(bucket_group.weights.tensor, range)
                                           : buffers_->Weights(*bucket, bucket->range);
    GatherBucket(*bucket, whole, ShardsOf(groups, *bucket), stream);
    if (!bucket_group.secondary.empty()) {
      const Tensor& part = bucket_group.secondary[i];
      const int64_t at = HostOf(groups, *bucket).rank() * part.numel();
      ops::Copy(stream, Cut(whole, {at, at + part.numel()}), part);
    }
    begin = range.end;
  }
}

void DataParallel::GatherBucket(const Bucket& bucket, const Tensor& whole,
                                const ProcessGroup& shards, const Stream& stream) const {
  const bool sharded = buffers_->shards(DataSharding::kStates);
  const FlatRange given = sharded ? bucket.shard : bucket.range;
  Tensor mine = buffers_->Weights(bucket, given);
  if (weights_on_host()) {
    const Tensor place = Cut(whole, Within(given, bucket));
    CopyFromOrToHost(mine, place, stream);
    mine = place;
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
        .AllGather(bucket_group.secondary[i], Cut(bucket_group.weights.tensor, range), stream);
    begin = range.end;
  }
}

void DataParallel::Average(const Bucket& bucket, const Tensor& values, const Stream& stream) const {
  compressor_->Average(IndexOf(bucket), values, ShardsOf(groups_, bucket), stream);
}

void DataParallel::ForgetErrors(const Stream& stream) const { compressor_->ForgetErrors(stream); }

void DataParallel::SetFloat8Weights(const Float8Weights& weights, MemoryLedger* ledger) {
  if (options_.float8_param_gather && buffers_->shards(DataSharding::kStates))
    float8_gather_ = std::make_unique<Float8Gather>(weights, buffers_, ledger);
}

std::map<std::string, float> DataParallel::LargestFloat8Weights() const {
  return float8_gather_ == nullptr ? std::map<std::string, float>() : float8_gather_->Largest();
}

void DataParallel::StartStep(int64_t micro_batches, int64_t iteration, bool own_gradients) {
  micro_batches_ = micro_batches;
  sent_ = {};
  CHECK(!own_gradients || is_one_bit());
  compresses_ = compressor_ != nullptr &&
                (is_one_bit() ? own_gradients : iteration >= options_.compression.start_iteration);
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
                                    : Cut(whole, {origin + range.begin, origin + range.end})
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

void DataParallel::Acquire(int block, int next) {
  BucketGroup& bucket_group = bucket_groups_[buffers_->bucket_group_of(block)];
  if (fetches_weights()) {
    StartGather(buffers_->bucket_group_of(block));
    if (next != kNone && options_.overlap_param_gather)
      StartGather(buffers_->bucket_group_of(next));
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

void DataParallel::BringSum(const BucketGroup& bucket_group, const Stream& stream) const {
  ForEachTrained(bucket_group, [&](const Bucket& bucket, const FlatRange& range) {
    CopyFromOrToHost(buffers_->Gradients(bucket, bucket.range),
                     Cut(bucket_group.gradients.tensor, range), stream);
  });
}

// Backward takes the blocks of a part of the model in descending order.
void DataParallel::StartBringingSum(int index) {
  if (index < 0 || !is_alone_ || shards_gradients() || !options_.overlap_grad_reduce) return;
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
  if (shards_gradients() || bucket_group.ends == 0) {
    ops::Zero(stream_, bucket_group.gradients.tensor);
  } else {
    BringSum(bucket_group, stream_);
  }
  Bind(&Parameter::grad, bucket_group, bucket_group.gradients.tensor);
  StartBringingSum(index - 1);
}

void DataParallel::EndGradients(int block) {
  const int index = buffers_->bucket_group_of(block);
  BucketGroup& bucket_group = bucket_groups_[index];
  ++bucket_group.ends;
  CHECK_LE(bucket_group.ends, micro_batches_ * bucket_group.blocks) << "block " << block;
  if (parts_ != nullptr) parts_->AfterMicroBatch(block, stream_);
  if (bucket_group.trained_elements == 0) return;
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
  const bool rounds =
      options_.gradient_dtype != DType::kFloat32 &&
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
// stages that share it.
void DataParallel::SumPartialGradient(const FlatParameter& flat) {
  const Parameter& parameter = *flat.parameter;
  const Sharding& sharding = parameter.sharding;
  const Bucket& bucket = buffers_->bucket_of(flat);
  const FlatRange range = Common(flat.range, buffers_->reduced_range(bucket));
  if (range.size() == 0) return;  // the same on all ranks of these groups
  const bool is_partial = sharding.partial.contains(Axis::kTensor) ||
                          sharding.partial.contains(Axis::kExpert) || parameter.tied;
  if (!is_partial) return;
  const Tensor stored = buffers_->Gradients(bucket, range);
  PooledTensor staged;
  if (weights_on_host()) {
    staged = gradients_pool_.Allocate(DType::kFloat32, range.size());
    CopyFromOrToHost(stored, staged.tensor, stream_);
  }
  const Tensor& gradient = weights_on_host() ? staged.tensor : stored;
  if (sharding.partial.contains(Axis::kTensor)) {
    const ProcessGroup& tensor = sharding.expert_grid ? groups_.expert_tensor
                                 : sharding.tensor_replicas > 1
                                     ? groups_.TensorReplicas(sharding.tensor_replicas)
                                     : groups_.tensor;
    tensor.AllReduce(gradient, ReduceOp::kSum, stream_);
  }
  if (sharding.partial.contains(Axis::kExpert))
    groups_.expert.AllReduce(gradient, ReduceOp::kSum, stream_);
  if (parameter.tied) groups_.tied_embedding.AllReduce(gradient, ReduceOp::kSum, stream_);
  if (weights_on_host()) CopyFromOrToHost(staged.tensor, stored, stream_);
  gradients_pool_.Free(&staged);
}

void DataParallel::FinalizeGradients() {
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
  const Tensor weights = buffers_->Weights(bucket, range);
  const ProcessGroup& stages = groups_.tied_embedding;
  if (!weights_on_host()) return stages.Broadcast(weights, /*root=*/0, stream_);
  if (stages.size() == 1) return;
  // They are fewer than the elements of a block, all of which the pool has had already.
  PooledTensor staged = weights_pool_.Allocate(weights.dtype(), weights.numel());
  if (stages.rank() == 0) Transport(stream_, weights, staged.tensor);
  stages.Broadcast(staged.tensor, /*root=*/0, stream_);
  if (stages.rank() != 0) Transport(stream_, staged.tensor, weights);
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
    float8_gather_->Measure({groups_.tensor, groups_.data_context}, stream_);
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
