// The construction of a DataParallel.
#include <algorithm>
#include <iterator>
#include <utility>

#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/optim/bucket_ranges.h"
#include "megatron/optim/compression/quantized_collectives.h"
#include "megatron/optim/data_parallel.h"

namespace megatron {
namespace {

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

// Returns the whole rows of matrices of a bucket that are in a range of its elements, counted from
// the range's begin.
std::vector<MatrixPlace> RowsWithin(const std::vector<MatrixPlace>& matrices,
                                    const FlatRange& range) {
  std::vector<MatrixPlace> rows;
  for (const MatrixPlace& matrix : matrices) {
    const int64_t columns = matrix.columns;
    const int64_t begin = std::max<int64_t>(0, range.begin - matrix.begin);
    const int64_t end = std::min(range.end - matrix.begin, matrix.rows * columns);
    const int64_t first = (begin + columns - 1) / columns,
                  last = std::max<int64_t>(0, end) / columns;
    if (first < last)
      rows.push_back({matrix.begin + first * columns - range.begin, last - first, columns});
  }
  return rows;
}

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
  std::unique_ptr<DataParallel> parallel(
      new DataParallel(options, groups, worker_groups, sizes, buffers, stream, ledger));
  if (buffers->weight_file() != nullptr) {
    MEGATRON_ASSIGN_OR_RETURN(parallel->weight_reader_,
                              WeightReader::Create(*buffers, stream, ledger));
  }
  return parallel;
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
  const std::vector<int>& group_of_block = buffers->layout().bucket_group_of_block;
  trains_block_.resize(group_of_block.size());
  for (const FlatParameter& flat : buffers->parameters()) {
    if (!flat.parameter->frozen) trains_block_[flat.parameter->block] = true;
  }
  for (size_t block = 0; block < group_of_block.size(); ++block) {
    const int index = group_of_block[block];
    if (index >= static_cast<int>(bucket_groups_.size())) bucket_groups_.resize(index + 1);
    if (trains_block_[block]) ++bucket_groups_[index].blocks;
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
  // Gradients are sent in the type in which they are kept.
  CHECK(!rounds_sums() || options.gradient_scale == 1);
  if (rounds_sums()) options_.gradient_dtype = sum_dtype();
  if (gradients_on_host() && (shards_gradients() || rounds_sums())) {
    int64_t most = 0;
    for (const Bucket& bucket : buffers->buckets())
      most = std::max(most, (shards_gradients() ? bucket.shard : bucket.range).size());
    gradient_sum_ = Buffer(stream.device(), most * SizeOf(sum_dtype()), "gradients/sum", ledger);
  }
  if (options.compression.enabled()) MakeCompressor(ledger);
  if (stream.is_meta() || !(options.overlap_grad_reduce || options.overlap_param_gather)) return;
  lane_ = MakeCommLane(stream, "communication");
  if (gradients_on_host() && is_alone_) gradient_lane_ = MakeCommLane(stream, "gradients");
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
    for (int i = bucket.first_parameter; i < bucket.last_parameter; ++i)
      AppendMatrices(buffers_->parameters()[i], bucket, &span.matrices);
    if (span.ranks > 1) {
      span.elements = bucket.shard.size();
      const std::vector<MatrixPlace> whole = std::exchange(span.matrices, {});
      for (int64_t begin = 0; begin < bucket.range.size(); begin += span.elements)
        span.matrices_of_ranks.push_back(RowsWithin(whole, {begin, begin + span.elements}));
      span.matrices =
          span.matrices_of_ranks[Within(bucket.shard, bucket).begin / bucket.shard.size()];
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

}  // namespace megatron
