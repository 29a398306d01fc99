#include "megatron/train/consensus.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"

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
  group_.AllReduce(Tensor(&value, DType::kInt32, {1}), ReduceOp::kMax, Stream::Cpu(&pool_));
  return group_.status().ok() ? value != 0 : mine;
}

absl::Status Consensus::FirstError(const absl::Status& mine) {
  if (group_.size() == 1) return mine;
  const Stream stream = Stream::Cpu(&pool_);
  int32_t first = mine.ok() ? group_.size() : group_.rank();
  group_.AllReduce(Tensor(&first, DType::kInt32, {1}), ReduceOp::kMin, stream);
  if (!group_.status().ok()) return mine.ok() ? group_.status() : mine;
  if (first == group_.size()) return absl::OkStatus();
  Message message;
  if (first == group_.rank()) {
    message.code = static_cast<int32_t>(mine.code());
    message.length = static_cast<int32_t>(std::min(mine.message().size(), sizeof(message.text)));
    std::memcpy(message.text, mine.message().data(), message.length);
  }
  group_.Broadcast(Tensor(&message, DType::kUInt8, {sizeof(message)}), first, stream);
  if (first == group_.rank()) return mine;
  if (!group_.status().ok()) return group_.status();
  return absl::Status(static_cast<absl::StatusCode>(message.code),
                      absl::string_view(message.text, message.length));
}

}  // namespace megatron
