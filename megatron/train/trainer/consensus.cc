#include "megatron/train/trainer/consensus.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "megatron/base/crc32c.h"

namespace megatron {
namespace {

// An error on its way between ranks.
struct Message {
  int32_t code = 0;
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

Consensus::Told Consensus::First(bool mine, int32_t code, absl::string_view text) {
  const Stream stream = Stream::Inline();
  int32_t first = mine ? group_.rank() : group_.size();
  group_.AllReduce(Tensor(&first, DType::kInt32, {1}), ReduceOp::kMin, stream);
  if (!group_.status().ok() || first == group_.size()) return {};
  Message message;
  if (first == group_.rank()) {
    message.code = code;
    message.length = static_cast<int32_t>(std::min(text.size(), sizeof(message.text)));
    std::memcpy(message.text, text.data(), message.length);
  }
  group_.Broadcast(Tensor(&message, DType::kUInt8, {sizeof(message)}), first, stream);
  if (!group_.status().ok()) return {};
  return {first, message.code, std::string(message.text, message.length)};
}

absl::Status Consensus::FirstError(const absl::Status& mine) {
  if (group_.size() == 1) return mine;
  const Told first = First(!mine.ok(), static_cast<int32_t>(mine.code()), mine.message());
  if (first.rank == group_.rank()) return mine;
  if (!group_.status().ok()) return mine.ok() ? group_.status() : mine;
  if (first.rank < 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(first.code), first.text);
}

std::optional<Failure> Consensus::FirstFailure(const std::optional<Failure>& mine) {
  if (group_.size() == 1) return mine;
  const Told first = First(mine.has_value(), mine.has_value() ? mine->code : 0,
                           mine.has_value() ? mine->message : "");
  if (!group_.status().ok()) {
    if (mine.has_value()) return mine;
    const bool hang = group_.status().code() == absl::StatusCode::kDeadlineExceeded;
    return Failure{hang ? kExitHang : kExitPeerLost, std::string(group_.status().message())};
  }
  if (first.rank < 0) return std::nullopt;
  const std::string whose = first.rank == 0 ? "" : absl::StrCat("rank ", first.rank, ": ");
  return Failure{static_cast<ExitCode>(first.code), whose + first.text};
}

bool Consensus::Same(absl::string_view mine) {
  if (group_.size() == 1) return true;
  // The complement turns the smallest into the largest: one reduction finds both.
  const uint32_t hash = Crc32c(mine);
  int64_t values[2] = {hash, ~int64_t{hash}};
  group_.AllReduce(Tensor(values, DType::kInt64, {2}), ReduceOp::kMax, Stream::Inline());
  return !group_.status().ok() || values[0] == ~values[1];
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
