#include "megatron/train/trainer/shard_copies.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/base/round_up.h"

namespace megatron {
namespace {

// Returns the hosts of all ranks of a group. After a failure of the group they do not matter.
std::vector<int64_t> HostsOf(const ProcessGroup& group, int64_t host, const Stream& stream) {
  std::vector<int64_t> hosts(static_cast<size_t>(group.size()), host);
  if (stream.is_meta()) return hosts;
  group.AllGather(Tensor(&host, DType::kInt64, {1}),
                  Tensor(hosts.data(), DType::kInt64, {group.size()}), stream);
  return hosts;
}

}  // namespace

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
                         const ProcessGroup& shards, int64_t host, int copies, const Stream& stream,
                         MemoryLedger* ledger)
    : buffers_(*buffers),
      shards_(shards),
      ring_(HostsOf(shards, host, stream), copies),
      sharing_(StateShards::Of(buffers->options())) {
  for (int rank = 0; rank < shards.size(); ++rank) {
    packed_.emplace_back(parameters, buffers_, sharing_.Rank(ShardOf(rank)), sharing_.by_parts);
    most_bytes_ = std::max(most_bytes_, packed_.back().bytes());
  }
  most_bytes_ = RoundUp(most_bytes_, Buffer::kAlignment);
  for (Generation& generation : generations_) {
    generation.memory = Buffer(buffers_.options().device, (1 + ring_.copies()) * most_bytes_,
                               "copies of optimizer shards", ledger);
  }
}

int ShardCopies::ShardOf(int rank) const {
  DataRank data = buffers_.options().data;
  data.rank = rank;
  return sharing_.ShardOf(data);
}

Tensor ShardCopies::Place(const Generation& generation, int copy) const {
  return generation.memory.At(copy * most_bytes_, DType::kUInt8, {packed_[KeptBy(copy)].bytes()});
}

absl::Status ShardCopies::Take(const CommonState& common, const std::vector<float>& numbers,
                               const Stream& stream) {
  Generation& next = generations_[1 - newest_];
  next.common.reset();
  const Tensor mine = Place(next, 0);
  packed_[shards_.rank()].Pack(buffers_, static_cast<char*>(mine.raw()));
  std::vector<Transfer> sends, receives;
  for (int copy = 1; copy <= ring_.copies(); ++copy) {
    const Tensor others = Place(next, copy);
    if (mine.bytes() > 0) sends.push_back({ring_.KeeperOf(shards_.rank(), copy), mine});
    if (others.bytes() > 0) receives.push_back({KeptBy(copy), others});
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
    for (int copy = 0; generation.common.has_value() && copy <= ring_.copies(); ++copy) {
      const Tensor bytes = Place(generation, copy);
      kept.push_back(
          {ShardOf(KeptBy(copy)), *generation.common, generation.numbers,
           std::string(static_cast<const char*>(bytes.raw()), static_cast<size_t>(bytes.bytes()))});
    }
  }
  return kept;
}

}  // namespace megatron
