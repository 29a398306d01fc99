#include "megatron/optim/quantized_collectives.h"

#include "glog/logging.h"
#include "megatron/ops/group_codes.h"

namespace megatron {
namespace {

using ops::CodeBits;
using ops::GroupMessageBytes;

Tensor Piece(const Tensor& flat, int64_t index, int64_t size) {
  return flat.Slice(0, index * size, (index + 1) * size);
}

// Sends summands(rank, i), for i < `pieces`, to each rank of the group, and writes sums(i), the sum
// of what the ranks sent. All of them have `size` elements. Sums are written when all summands have
// been encoded.
template <typename Summands, typename Sums>
void ExchangeAndSum(const ProcessGroup& group, int64_t pieces, int64_t size,
                    const Summands& summands, const Sums& sums, const Tensor& scratch,
                    const Stream& stream) {
  const int64_t bytes = GroupMessageBytes(CodeBits::k4, size);
  const int64_t all = group.size() * pieces * bytes;
  const Tensor sent = scratch.Slice(0, 0, all), received = scratch.Slice(0, all, 2 * all);
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    for (int64_t i = 0; i < pieces; ++i) {
      ops::EncodeGroups(stream, CodeBits::k4, summands(rank, i),
                        Piece(sent, rank * pieces + i, bytes));
    }
  }
  group.AllToAll(sent, received, stream);
  for (int64_t i = 0; i < pieces; ++i) {
    const Tensor sum = sums(i);
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      const Tensor message = Piece(received, rank * pieces + i, bytes);
      rank == 0 ? ops::DecodeGroups(stream, CodeBits::k4, message, sum)
                : ops::AddDecodedGroups(stream, CodeBits::k4, message, sum);
    }
  }
}

}  // namespace

int64_t QuantizedAllGatherScratch(int64_t shard, int ranks) {
  return ranks * GroupMessageBytes(CodeBits::k8, shard);
}

int64_t QuantizedReduceScatterScratch(int64_t shard, int ranks) {
  return 2 * ranks * GroupMessageBytes(CodeBits::k4, shard);
}

void QuantizedAllGather(const Tensor& shard, const Tensor& out, const Tensor& scratch,
                        const ProcessGroup& group, const Stream& stream) {
  const int64_t size = shard.numel(), bytes = GroupMessageBytes(CodeBits::k8, size);
  const Tensor all = scratch.Slice(0, 0, group.size() * bytes);
  const Tensor mine = Piece(all, group.rank(), bytes);
  ops::EncodeGroups(stream, CodeBits::k8, shard, mine);
  group.AllGather(mine, all, stream);
  for (int64_t rank = 0; rank < group.size(); ++rank)
    ops::DecodeGroups(stream, CodeBits::k8, Piece(all, rank, bytes), Piece(out, rank, size));
}

void QuantizedReduceScatter(const Tensor& whole, const Tensor& scratch, const ProcessGroup& shards,
                            const ProcessGroup& host, const ProcessGroup& across_hosts,
                            const Stream& stream) {
  if (shards.size() == 1) return;
  const int64_t size = whole.numel() / shards.size();
  const auto shard = [&](int64_t rank) { return Piece(whole, rank, size); };
  const auto mine = [&](int64_t) { return shard(shards.rank()); };
  if (host.size() == 1 || across_hosts.size() == 1) {
    const auto of_rank = [&](int64_t rank, int64_t) { return shard(rank); };
    return ExchangeAndSum(shards, 1, size, of_rank, mine, scratch, stream);
  }
  CHECK_EQ(host.size() * across_hosts.size(), shards.size());
  CHECK_EQ(across_hosts.rank() * host.size() + host.rank(), shards.rank());
  // A rank of the host gets the summands of the ranks in its place of every host. The sums lie
  // where summands were that have been sent.
  const auto of_place = [&](int64_t place, int64_t i) { return shard(i * host.size() + place); };
  ExchangeAndSum(host, across_hosts.size(), size, of_place, shard, scratch, stream);
  const auto of_host = [&](int64_t i, int64_t) { return shard(i); };
  ExchangeAndSum(across_hosts, 1, size, of_host, mine, scratch, stream);
}

}  // namespace megatron
