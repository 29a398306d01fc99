#include "megatron/optim/float8_gather.h"

#include <algorithm>
#include <set>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/float8/flat.h"
#include "megatron/ops/float8/flat_blocks.h"
#include "megatron/ops/float8/quantize.h"

namespace megatron {
namespace {

constexpr int64_t kMessageAlignment = 16;

FlatRange ShardOf(const Bucket& bucket, int64_t rank) {
  const int64_t size = bucket.shard.size();
  return {rank * size, (rank + 1) * size};
}

int64_t RanksOf(const Bucket& bucket) {
  return bucket.shard.size() == 0 ? 1 : bucket.range.size() / bucket.shard.size();
}

}  // namespace

Float8Gather::Float8Gather(const Float8Weights& weights, const ParameterBuffers* buffers,
                           MemoryLedger* ledger)
    : buffers_(buffers),
      predicted_(weights.predicted),
      scaling_(weights.scaling),
      power_of_two_(weights.power_of_two) {
  CHECK(scaling_ == Float8Scaling::kTensor || has_blocks());
  const std::set<std::string> names(weights.names.begin(), weights.names.end());
  int64_t count = 0;
  for (const bool experts : {false, true}) {
    for (const FlatParameter& flat : buffers->parameters()) {
      const Parameter& parameter = *flat.parameter;
      if (names.count(parameter.name) == 0 || parameter.sharding.expert_grid != experts) continue;
      Weight& weight = weights_[&parameter] = WeightOf(parameter);
      weight.begin += count;
      weight.end += count;
      count = weight.end;
    }
    if (!experts) num_dense_ = count;
  }
  const Device device = buffers->options().device;
  const int64_t bytes = count * SizeOf(DType::kFloat32);
  buffer_ = Buffer(device, 2 * bytes, "fp8 scales", ledger);
  largest_ = buffer_.At(0, DType::kFloat32, {count});
  amax_ = buffer_.At(bytes, DType::kFloat32, {count});
  if (!has_blocks()) host_largest_ = HostMirror(largest_, "fp8 scales");
  int64_t most = 0;
  for (const Bucket& bucket : buffers->buckets())
    most = std::max(most, BytesOf(bucket) * RanksOf(bucket));
  messages_ = Buffer(device, most, "fp8 weights", ledger);
}

// Products see all dims of a matrix but the last as rows.
Float8Gather::Weight Float8Gather::WeightOf(const Parameter& parameter) const {
  const Sharding& sharding = parameter.sharding;
  const Shape& shape = sharding.local_shape;
  const bool experts = sharding.expert_grid;
  Weight weight;
  weight.matrices = experts ? shape[0] : 1;
  weight.size = shape.numel() / weight.matrices;
  weight.columns = shape[shape.rank() - 1];
  if (has_blocks()) {
    weight.end =
        weight.matrices * ops::NumFloat8Blocks(weight.size / weight.columns, weight.columns);
  } else {
    weight.end = experts ? sharding.global_shape[0] : 1;
    weight.first = experts ? sharding.offset[0] : 0;
  }
  return weight;
}

Tensor Float8Gather::ScalesOf(const Tensor& of_all, const Weight& weight, int64_t matrix) const {
  const int64_t count = has_blocks() ? (weight.end - weight.begin) / weight.matrices : 1;
  const int64_t begin = weight.begin + (weight.first + matrix) * count;
  return of_all.Slice(0, begin, begin + count);
}

// Blocks lie on one tensor-parallel rank each.
void Float8Gather::Measure(const ProcessGroup& tensor, const ProcessGroup& data,
                           const ProcessGroup& expert_data, const Stream& stream) {
  measured_ = true;
  if (weights_.empty()) return;
  if (!has_blocks()) host_largest_.Finish();
  ops::Zero(stream, largest_);
  for (const FlatParameter& flat : buffers_->parameters()) {
    const auto found = weights_.find(flat.parameter);
    if (found == weights_.end()) continue;
    const Weight& weight = found->second;
    const Bucket& bucket = buffers_->bucket_of(flat);
    for (int64_t i = 0; i < weight.matrices; ++i) {
      const int64_t begin = flat.range.begin + i * weight.size;
      const FlatRange mine = Common({begin, begin + weight.size}, bucket.part);
      if (mine.size() == 0) continue;
      const Tensor elements = buffers_->Weights(bucket, mine);
      const Tensor largest = ScalesOf(largest_, weight, i);
      if (has_blocks()) {
        ops::AbsMaxOfBlocks(stream, elements, {mine.begin - begin, weight.columns}, largest);
      } else {
        ops::AbsMax(stream, elements, largest);
      }
    }
  }
  if (has_blocks()) {
    const auto reduce = [&](const ProcessGroup& group, int64_t begin, int64_t end) {
      if (begin < end) group.AllReduce(largest_.Slice(0, begin, end), ReduceOp::kMax, stream);
    };
    reduce(data, 0, num_dense_);
    reduce(expert_data, num_dense_, largest_.numel());
    return ops::Copy(stream, largest_, amax_);
  }
  for (const ProcessGroup* group : {&tensor, &data})
    group->AllReduce(largest_, ReduceOp::kMax, stream);
  host_largest_.StartFetch(stream);
  ops::Copy(stream, largest_, amax_);
  if (predicted_ == nullptr) return;
  for (const auto& [parameter, weight] : weights_) {
    const Tensor predicted = predicted_(parameter->name);
    if (!predicted.empty()) ops::Copy(stream, predicted, amax_.Slice(0, weight.begin, weight.end));
  }
}

std::map<std::string, std::vector<float>> Float8Gather::Largest() const {
  std::map<std::string, std::vector<float>> largest;
  if (!measured_ || host_largest_.host().raw() == nullptr) return largest;
  host_largest_.Finish();
  const float* const all = host_largest_.host().data<float>();
  for (const auto& [parameter, weight] : weights_)
    largest[parameter->name].assign(all + weight.begin, all + weight.end);
  return largest;
}

std::vector<Float8Gather::Run> Float8Gather::RunsOf(const Bucket& bucket,
                                                    const FlatRange& shard) const {
  std::vector<Run> runs;
  const auto append = [&](const FlatRange& range, const Weight* weight, int64_t matrix) {
    const FlatRange common = Common(range, shard);
    if (common.size() > 0) runs.push_back({common, weight, matrix, common.begin - range.begin});
  };
  int64_t at = 0;
  for (int i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
    const FlatParameter& flat = buffers_->parameters()[i];
    const auto found = weights_.find(flat.parameter);
    if (found == weights_.end()) continue;
    const FlatRange range = {flat.range.begin - bucket.range.begin,
                             flat.range.end - bucket.range.begin};
    append({at, range.begin}, nullptr, 0);
    const Weight& weight = found->second;
    for (int64_t i = 0; i < weight.matrices; ++i) {
      const int64_t begin = range.begin + i * weight.size;
      append({begin, begin + weight.size}, &weight, i);
    }
    at = range.end;
  }
  append({at, bucket.range.size()}, nullptr, 0);
  return runs;
}

int64_t Float8Gather::BytesOf(const std::vector<Run>& runs, int64_t element_bytes) {
  int64_t bytes = 0;
  for (const Run& run : runs)
    bytes += run.range.size() * (run.weight == nullptr ? element_bytes : 1);
  return bytes;
}

// Ranks send messages of one size, that of the longest.
int64_t Float8Gather::BytesOf(const Bucket& bucket) const {
  int64_t most = 0;
  for (int64_t rank = 0; rank < RanksOf(bucket); ++rank) {
    most = std::max(most, BytesOf(RunsOf(bucket, ShardOf(bucket, rank)),
                                  SizeOf(buffers_->options().model_dtype)));
  }
  return (most + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment;
}

void Float8Gather::Encode(const Tensor& x, const Run& run, const Tensor& codes,
                          const Stream& stream) const {
  const Tensor amax = ScalesOf(amax_, *run.weight, run.matrix);
  if (!has_blocks()) return ops::EncodeFloat8(stream, x, amax, codes);
  ops::EncodeFloat8Blocks(stream, x, {run.first, run.weight->columns}, amax, power_of_two_, codes);
}

void Float8Gather::Decode(const Tensor& codes, const Run& run, const Tensor& x,
                          const Stream& stream) const {
  const Tensor amax = ScalesOf(amax_, *run.weight, run.matrix);
  if (!has_blocks()) return ops::DecodeFloat8(stream, codes, amax, x);
  ops::DecodeFloat8Blocks(stream, codes, {run.first, run.weight->columns}, amax, power_of_two_, x);
}

// Elements that are sent as they are come first in a message, so that they are aligned.
void Float8Gather::Convert(const std::vector<Run>& runs, int64_t origin, const Tensor& elements,
                           int64_t message, bool back, const Stream& stream) const {
  const DType dtype = buffers_->options().model_dtype;
  int64_t at = message;
  for (const bool codes : {false, true}) {
    for (const Run& run : runs) {
      if ((run.weight != nullptr) != codes) continue;
      const int64_t size = run.range.size();
      const Tensor part = elements.Slice(0, run.range.begin - origin, run.range.end - origin);
      const int64_t bytes = size * (codes ? 1 : SizeOf(dtype));
      const Tensor sent = messages_.At(at, codes ? DType::kUInt8 : dtype, {size});
      at += bytes;
      if (!codes) {
        back ? ops::Copy(stream, sent, part) : ops::Copy(stream, part, sent);
      } else {
        back ? Decode(sent, run, part, stream) : Encode(part, run, sent, stream);
      }
    }
  }
}

void Float8Gather::Gather(const Bucket& bucket, const Tensor& whole, const ProcessGroup& group,
                          const Stream& stream) const {
  const int64_t bytes = BytesOf(bucket);
  const Tensor all = messages_.At(0, DType::kUInt8, {bytes * group.size()});
  const Tensor mine = all.Slice(0, group.rank() * bytes, (group.rank() + 1) * bytes);
  const FlatRange shard = ShardOf(bucket, group.rank());
  const Tensor weights = buffers_->Weights(bucket, bucket.shard);
  Convert(RunsOf(bucket, shard), shard.begin, weights, group.rank() * bytes, /*back=*/false,
          stream);
  group.AllGather(mine, all, stream);
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    Convert(RunsOf(bucket, ShardOf(bucket, rank)), 0, whole, rank * bytes, /*back=*/true, stream);
  }
  const Tensor own = whole.Slice(0, shard.begin, shard.end);
  if (own.raw() != weights.raw()) ops::Copy(stream, weights, own);
}

}  // namespace megatron
