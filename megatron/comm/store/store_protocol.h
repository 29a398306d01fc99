// The messages between a TcpStoreClient and a TcpStoreServer.
//
// A frame is the length of its body as 32 bits, then the body, at most kMaxStoreFrame bytes. Each
// request gets one reply, in order; a Wait's reply comes when its keys are there or its time is
// over.
#ifndef MEGATRON_COMM_STORE_STORE_PROTOCOL_H_
#define MEGATRON_COMM_STORE_STORE_PROTOCOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "megatron/comm/store/store.h"

namespace megatron {

constexpr size_t kStoreLengthBytes = 4;
constexpr size_t kMaxStoreFrame = kMaxStoreKey + kMaxStoreValue + 64;

enum class StoreOperation : uint8_t { kSet, kGet, kAdd, kWait, kHold };

struct StoreRequest {
  StoreOperation operation = StoreOperation::kSet;
  std::vector<std::string> keys;  // one, except of a Wait
  std::string value;              // set by a Set or Hold
  int64_t delta = 0;              // added by an Add
  absl::Duration timeout;         // limit of a Get or Wait
};

struct StoreReply {
  absl::Status status;
  std::string value;  // answer to a Get
  int64_t count = 0;  // answer to an Add
};

// Encode a frame: its length, then its body.
std::string EncodeStoreRequest(const StoreRequest& request);
std::string EncodeStoreReply(const StoreReply& reply);
// Decode a body. They return kInvalidArgument for bytes that no Encode makes.
absl::StatusOr<StoreRequest> DecodeStoreRequest(absl::string_view body);
absl::StatusOr<StoreReply> DecodeStoreReply(absl::string_view body);

// Returns the length of a frame from its first bytes; kInvalidArgument if it is longer than a frame
// may be.
absl::StatusOr<size_t> StoreFrameLength(absl::string_view length_bytes);

}  // namespace megatron

#endif  // MEGATRON_COMM_STORE_STORE_PROTOCOL_H_
