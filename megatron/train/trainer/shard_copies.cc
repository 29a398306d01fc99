#include "megatron/train/trainer/shard_copies.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/base/round_up.h"

namespace megatron {

StateShards StateShards::Of(const ParameterBuffersOptions& options) {
  StateShards shards;
  if (options.sharding == DataSharding::kNone) return shards;
  shards.parts = options.data.parts;
  shards.by_parts = options.shards_states_by_parts;
  shards.count = shards.by_parts ? options.data.size * options.data.parts : options.data.size;
  return shards;
}

DataRank StateShards::Rank(int shard) const {
  DataRank data;
  data.parts = parts;
  data.size = by_parts ? count / parts : count;
  data.rank = by_parts ? shard / parts : shard;
  data.part = by_parts ? shard % parts : 0;
  return data;
}

ShardCopies::ShardCopies(const std::vector<Parameter*>& parameters, const ParameterBuffers* buffers,
                         const ProcessGroup& shards, int copies, MemoryLedger* ledger)
    : buffers_(*buffers),
      shards_(shards),
      copies_(std::min(copies, shards.size() - 1)),
      sharing_(StateShards::Of(buffers->options())) {
  for (int rank = 0; rank < shards.size(); ++rank) {
    packed_.emplace_back(parameters, buffers_, sharing_.Rank(ShardOf(rank)), sharing_.by_parts);
    most_bytes_ = std::max(most_bytes_, packed_.back().bytes());
  }
  most_bytes_ = RoundUp(most_bytes_, Buffer::kAlignment);
  for (Generation& generation : generations_) {
    generation.memory = Buffer(buffers_.options().device, (1 + copies_) * most_bytes_,
                               "copies of optimizer shards", ledger);
  }
}

int ShardCopies::ShardOf(int rank) const {
  DataRank data = buffers_.options().data;
  data.rank = rank;
  return sharing_.ShardOf(data);
}

Tensor ShardCopies::Place(const Generation& generation, int distance) const {
  return generation.memory.At(distance * most_bytes_, DType::kUInt8,
                              {packed_[Before(distance)].bytes()});
}

absl::Status ShardCopies::Take(const CommonState& common, const std::vector<float>& numbers,
                               const Stream& stream) {
  Generation& next = generations_[1 - newest_];
  next.common.reset();
  const Tensor mine = Place(next, 0);
  packed_[shards_.rank()].Pack(buffers_, static_cast<char*>(mine.raw()));
  std::vector<Transfer> sends, receives;
  for (int distance = 1; distance <= copies_; ++distance) {
    const Tensor others = Place(next, distance);
    if (mine.bytes() > 0) sends.push_back({(shards_.rank() + distance) % shards_.size(), mine});
    if (others.bytes() > 0) receives.push_back({Before(distance), others});
  }
  shards_.Exchange(sends, receives, stream);
  if (!shards_.status().ok()) return shards_.status();
  next.common = common;
  next.numbers = numbers;
  newest_ = 1 - newest_;
  return absl::OkStatus();
}

void ShardCopies::Update(const CommonState& common) {
  Generation& newest = generations_[newest_];
  CHECK_EQ(iteration(), common.progress.iteration);
  newest.common = common;
}

int64_t ShardCopies::iteration() const {
  const std::optional<CommonState>& common = generations_[newest_].common;
  return common.has_value() ? common->progress.iteration : -1;
}

std::vector<KeptShard> ShardCopies::Keep() const {
  std::vector<KeptShard> kept;
  for (const Generation& generation : generations_) {
    for (int distance = 0; generation.common.has_value() && distance <= copies_; ++distance) {
      const Tensor bytes = Place(generation, distance);
      kept.push_back(
          {ShardOf(Before(distance)), *generation.common, generation.numbers,
           std::string(static_cast<const char*>(bytes.raw()), static_cast<size_t>(bytes.bytes()))});
    }
  }
  return kept;
}

}  // namespace megatron
