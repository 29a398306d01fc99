#include "megatron/train/trainer/consensus.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/base/crc32c.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

// An error on its way between ranks.
struct Message {
  int32_t kind = 0;       // absl::StatusCode
  int32_t exit_code = 0;  // 0: the error carries none
  int32_t length = 0;
  char text[1024] = {};
};

}  // namespace

bool Consensus::Any(bool mine) {
  if (group_.size() == 1) return mine;
  int32_t value = mine ? 1 : 0;
  group_.AllReduce(Tensor(&value, DType::kInt32, {1}), ReduceOp::kMax, Stream::Inline());
  return group_.status().ok() ? value != 0 : mine;
}

int64_t Consensus::Max(int64_t mine) {
  if (group_.size() == 1) return mine;
  int64_t value = mine;
  group_.AllReduce(Tensor(&value, DType::kInt64, {1}), ReduceOp::kMax, Stream::Inline());
  return group_.status().ok() ? value : mine;
}

Consensus::RankError Consensus::FirstRankError(const absl::Status& mine) {
  const Stream stream = Stream::Inline();
  int32_t first = mine.ok() ? group_.size() : group_.rank();
  group_.AllReduce(Tensor(&first, DType::kInt32, {1}), ReduceOp::kMin, stream);
  if (!group_.status().ok() || first == group_.size()) return {};
  Message message;
  if (first == group_.rank()) {
    message.kind = static_cast<int32_t>(mine.code());
    message.exit_code = HasExitCode(mine) ? ExitCodeOf(mine) : kExitDone;
    message.length = static_cast<int32_t>(std::min(mine.message().size(), sizeof(message.text)));
    std::memcpy(message.text, mine.message().data(), message.length);
  }
  group_.Broadcast(Tensor(&message, DType::kUInt8, {sizeof(message)}), first, stream);
  if (!group_.status().ok()) return {};
  const absl::Status status(static_cast<absl::StatusCode>(message.kind),
                            absl::string_view(message.text, message.length));
  if (message.exit_code == kExitDone) return {first, status};
  return {first, WithExitCode(status, static_cast<ExitCode>(message.exit_code))};
}

absl::Status Consensus::FirstError(const absl::Status& mine) {
  if (group_.size() == 1) return mine;
  const RankError first = FirstRankError(mine);
  if (first.rank == group_.rank()) return mine;
  if (!group_.status().ok()) return mine.ok() ? group_.status() : mine;
  return first.status;
}

absl::Status Consensus::FirstFailure(const absl::Status& mine) {
  if (group_.size() == 1) return mine;
  const RankError first = FirstRankError(mine);
  if (!group_.status().ok())
    return mine.ok() ? WithExitCodeOfRank(group_.status(), kExitPeerLost) : mine;
  if (first.rank <= 0) return first.status;
  return WithExitCode(absl::Status(first.status.code(),
                                   absl::StrCat("rank ", first.rank, ": ", first.status.message())),
                      ExitCodeOf(first.status));
}

bool Consensus::Same(absl::string_view mine) {
  if (group_.size() == 1) return true;
  // The complement turns the smallest into the largest: one reduction finds both.
  const uint32_t hash = Crc32c(mine);
  int64_t values[2] = {hash, ~int64_t{hash}};
  group_.AllReduce(Tensor(values, DType::kInt64, {2}), ReduceOp::kMax, Stream::Inline());
  return !group_.status().ok() || values[0] == ~values[1];
}

std::string Consensus::OfAll(absl::string_view mine) {
  if (group_.size() == 1) return std::string(mine);
  const Stream stream = Stream::Inline();
  int64_t length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(static_cast<size_t>(group_.size()));
  group_.AllGather(Tensor(&length, DType::kInt64, {1}),
                   Tensor(lengths.data(), DType::kInt64, {group_.size()}), stream);
  if (!group_.status().ok()) return std::string(mine);
  std::string all;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int64_t size = lengths[static_cast<size_t>(rank)];
    if (size == 0) continue;
    std::string text =
        rank == group_.rank() ? std::string(mine) : std::string(static_cast<size_t>(size), '\0');
    group_.Broadcast(Tensor(&text[0], DType::kUInt8, {size}), rank, stream);
    all += text;
  }
  return group_.status().ok() ? all : std::string(mine);
}

std::string Consensus::OfFirst(absl::string_view mine) {
  std::string text(mine);
  if (group_.size() == 1) return text;
  const Stream stream = Stream::Inline();
  int64_t length = static_cast<int64_t>(text.size());
  group_.Broadcast(Tensor(&length, DType::kInt64, {1}), 0, stream);
  if (!group_.status().ok()) return std::string(mine);
  text.resize(static_cast<size_t>(length));
  group_.Broadcast(Tensor(&text[0], DType::kUInt8, {length}), 0, stream);
  return group_.status().ok() ? text : std::string(mine);
}

}  // namespace megatron
