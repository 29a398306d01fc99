#include "megatron/optim/compression/quantized_collectives.h"

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

using ops::CodeBits;
using ops::GroupMessageBytes;

Tensor Piece(const Tensor& flat, int64_t index, int64_t size) {
  return flat.Slice(0, index * size, (index + 1) * size);
}

// Encodes x, and adds the error, unless it is empty, to x before. The error then is what the
// message lacks of x.
void EncodeWithFeedback(const Stream& stream, CodeBits bits, const Tensor& x, const Tensor& error,
                        const Tensor& message) {
  if (!error.empty()) ops::Add(stream, error, x);
  ops::EncodeGroups(stream, bits, x, message);
  if (error.empty()) return;
  ops::DecodeGroups(stream, bits, message, error);
  ops::Scale(stream, -1, error);
  ops::Add(stream, x, error);
}

// Sends summands(rank, i), for i < `pieces`, to each rank of the group, and writes sums(i), the sum
// of what the ranks sent. All of them have `size` elements. Sums are written when all summands have
// been encoded. errors(rank, i) feeds back the rounding of a summand, or is empty.
template <typename Summands, typename Errors, typename Sums>
void ExchangeAndSum(const ProcessGroup& group, CodeBits bits, int64_t pieces, int64_t size,
                    const Summands& summands, const Errors& errors, const Sums& sums,
                    const Tensor& scratch, const Stream& stream) {
  const int64_t bytes = GroupMessageBytes(bits, size);
  const int64_t all = group.size() * pieces * bytes;
  const Tensor sent = scratch.Slice(0, 0, all), received = scratch.Slice(0, all, 2 * all);
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    for (int64_t i = 0; i < pieces; ++i) {
      EncodeWithFeedback(stream, bits, summands(rank, i), errors(rank, i),
                         Piece(sent, rank * pieces + i, bytes));
    }
  }
  group.AllToAll(sent, received, stream);
  for (int64_t i = 0; i < pieces; ++i) {
    const Tensor sum = sums(i);
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      const Tensor message = Piece(received, rank * pieces + i, bytes);
      rank == 0 ? ops::DecodeGroups(stream, bits, message, sum)
                : ops::AddDecodedGroups(stream, bits, message, sum);
    }
  }
}

}  // namespace

int64_t QuantizedAllGatherScratch(int64_t shard, int ranks) {
  return ranks * GroupMessageBytes(CodeBits::k8, shard);
}

int64_t QuantizedReduceScatterScratch(CodeBits bits, int64_t shard, int ranks) {
  return 2 * ranks * GroupMessageBytes(bits, shard);
}

void QuantizedAllGather(const Tensor& shard, const Tensor& error, const Tensor& out,
                        const Tensor& scratch, const ProcessGroup& group, const Stream& stream) {
  const int64_t size = shard.numel(), bytes = GroupMessageBytes(CodeBits::k8, size);
  const Tensor all = scratch.Slice(0, 0, group.size() * bytes);
  const Tensor mine = Piece(all, group.rank(), bytes);
  EncodeWithFeedback(stream, CodeBits::k8, shard, error, mine);
  group.AllGather(mine, all, stream);
  for (int64_t rank = 0; rank < group.size(); ++rank)
    ops::DecodeGroups(stream, CodeBits::k8, Piece(all, rank, bytes), Piece(out, rank, size));
}

void QuantizedReduceScatter(CodeBits bits, const Tensor& whole, const Tensor& error,
                            const Tensor& scratch, const ProcessGroup& group,
                            const Stream& stream) {
  const int64_t size = whole.numel() / group.size();
  const auto summand = [&](int64_t rank, int64_t) { return Piece(whole, rank, size); };
  const auto feedback = [&](int64_t rank, int64_t) {
    return error.empty() ? Tensor() : Piece(error, rank, size);
  };
  const auto mine = [&](int64_t) { return Piece(whole, group.rank(), size); };
  ExchangeAndSum(group, bits, 1, size, summand, feedback, mine, scratch, stream);
}

void QuantizedReduceScatter(const Tensor& whole, const Tensor& scratch, const ProcessGroup& shards,
                            const ProcessGroup& host, const ProcessGroup& across_hosts,
                            const Stream& stream) {
  if (shards.size() == 1) return;
  if (host.size() == 1 || across_hosts.size() == 1)
    return QuantizedReduceScatter(CodeBits::k4, whole, Tensor(), scratch, shards, stream);
  const int64_t size = whole.numel() / shards.size();
  const auto shard = [&](int64_t rank) { return Piece(whole, rank, size); };
  const auto mine = [&](int64_t) { return shard(shards.rank()); };
  const auto no_error = [](int64_t, int64_t) { return Tensor(); };
  CHECK_EQ(host.size() * across_hosts.size(), shards.size());
  CHECK_EQ(across_hosts.rank() * host.size() + host.rank(), shards.rank());
  // A rank of the host gets the summands of the ranks in its place of every host. The sums lie
  // where summands were that have been sent.
  const auto of_place = [&](int64_t place, int64_t i) { return shard(i * host.size() + place); };
  ExchangeAndSum(host, CodeBits::k4, across_hosts.size(), size, of_place, no_error, shard, scratch,
                 stream);
  const auto of_host = [&](int64_t i, int64_t) { return shard(i); };
  ExchangeAndSum(across_hosts, CodeBits::k4, 1, size, of_host, no_error, mine, scratch, stream);
}

}  // namespace megatron
