// The frames that connected ranks of a TcpWorld send each other.
//
// A frame is a header of kFrameHeaderBytes and as many bytes as the header says. Frames with
// tensors (kData) go to memory that their receiver has named before, and are as long as that
// memory. All others are at most kMaxMessageBytes long.
#ifndef MEGATRON_COMM_TCP_TCP_FRAME_H_
#define MEGATRON_COMM_TCP_TCP_FRAME_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/comm/collective.h"

namespace megatron {

constexpr size_t kFrameHeaderBytes = 32;
constexpr size_t kMaxMessageBytes = 1 << 20;

enum class FrameKind : uint8_t {
  kCall = 1,   // "I have arrived at call `sequence` of `group`", with the call: CallMessage
  kData,       // a part of a call, or of an exchange's message
  kOffer,      // "I have message `sequence` for you in `group`": OfferMessage
  kAccept,     // "send it", or "I have it"
  kHeartbeat,  // "I live", with the status broadcast; the tag is 1 if I wait for you, else 0
  kGoodbye,    // "I make no more calls"
  kAbort,      // "the world has failed": AbortMessage; the tag is 1 + the lost rank, or 0
  kState,      // the work of the sender when the world failed, as text
};

struct FrameHeader {
  FrameKind kind = FrameKind::kHeartbeat;
  uint32_t tag = 0;  // the number of the part, for kData
  uint64_t group = 0;
  uint64_t sequence = 0;
  uint64_t bytes = 0;  // bytes that follow the header
};

std::array<char, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header);
// Returns kInvalidArgument for bytes that EncodeFrameHeader never makes, and for messages that are
// too long.
absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::string_view bytes);

// A rank's call, so that others can compare it with theirs, and the data of small ones.
class CallMessage {
 public:
  // `split` is not empty if this is a Split instead of a call.
  static std::string Encode(const CollectiveCall& call, absl::string_view split,
                            absl::string_view data);
  // The result has as many counts, if any, as the group has ranks.
  static absl::StatusOr<CallMessage> Decode(absl::string_view bytes, int group_size);

  // Returns the call, whose tensors have dtypes and shapes but no memory. It is valid as long as
  // this object.
  CollectiveCall call() const;
  const std::string& split() const { return split_; }
  const std::string& data() const { return data_; }
  std::string Describe() const { return split_.empty() ? call().Describe() : split_; }

 private:
  CollectiveCall call_;
  std::vector<int64_t> send_counts_, receive_counts_;
  std::string split_, data_;
};

// Announces a message of an exchange, with all of its data if it is small.
struct OfferMessage {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::string data;

  static std::string Encode(const Tensor& tensor, absl::string_view data);
  static absl::StatusOr<OfferMessage> Decode(absl::string_view bytes);
};

struct AbortMessage {
  static std::string Encode(const absl::Status& reason);
  // Never returns OK: bytes that cannot be read are an error, too.
  static absl::Status Decode(absl::string_view bytes);
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_FRAME_H_
