// No bytes crash the readers of what other processes send, nor make them keep more than they got;
// and what they take, they take again when it is written out.
//
// The first byte of an input chooses the reader.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "glog/logging.h"
#include "megatron/comm/store/store_protocol.h"
#include "megatron/comm/tcp/tcp_frame.h"
#include "megatron/comm/watch/deadlock.h"

namespace megatron {
namespace {

void CheckFrameHeader(absl::string_view bytes) {
  const absl::StatusOr<FrameHeader> header = DecodeFrameHeader(bytes);
  if (!header.ok()) return;
  const auto encoded = EncodeFrameHeader(*header);
  CHECK(absl::string_view(encoded.data(), encoded.size()) == bytes);
}

void CheckCall(absl::string_view bytes, int group_size) {
  const absl::StatusOr<CallMessage> message = CallMessage::Decode(bytes, group_size);
  if (!message.ok()) return;
  const std::string encoded =
      CallMessage::Encode(message->call(), message->split(), message->data());
  const absl::StatusOr<CallMessage> again = CallMessage::Decode(encoded, group_size);
  CHECK(again.ok()) << again.status();
  CHECK_EQ(again->Describe(), message->Describe());
  CHECK(again->data() == message->data());
  CHECK(CallMessage::Encode(again->call(), again->split(), again->data()) == encoded);
}

void CheckOffer(absl::string_view bytes) {
  const absl::StatusOr<OfferMessage> offer = OfferMessage::Decode(bytes);
  if (offer.ok()) CHECK_LE(offer->data.size(), bytes.size());
}

void CheckRequest(absl::string_view bytes) {
  const absl::StatusOr<StoreRequest> request = DecodeStoreRequest(bytes);
  if (!request.ok()) return;
  const std::string encoded = EncodeStoreRequest(*request).substr(kStoreLengthBytes);
  CHECK(encoded == bytes);
}

void CheckReply(absl::string_view bytes) {
  const absl::StatusOr<StoreReply> reply = DecodeStoreReply(bytes);
  if (!reply.ok()) return;
  const std::string encoded = EncodeStoreReply(*reply).substr(kStoreLengthBytes);
  CHECK(encoded == bytes);
}

// In the messages of signs of life.
void CheckWaitingCalls(absl::string_view bytes) {
  const absl::StatusOr<std::vector<WaitingCall>> calls = DecodeWaitingCalls(bytes);
  if (!calls.ok()) return;
  FindDeadlock({{0, *calls}});
  const absl::StatusOr<std::vector<WaitingCall>> again =
      DecodeWaitingCalls(EncodeWaitingCalls(*calls));
  CHECK(again.ok()) << again.status();
  CHECK(SameCalls(*again, *calls));
}

}  // namespace
}  // namespace megatron

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 7) {
    case 0:
      megatron::CheckFrameHeader(bytes);
      break;
    case 1:
      megatron::CheckCall(bytes, 1);
      break;
    case 2:
      megatron::CheckCall(bytes, 4);
      break;
    case 3:
      megatron::CheckOffer(bytes);
      break;
    case 4:
      CHECK(!megatron::AbortMessage::Decode(bytes).ok());
      break;
    case 5:
      megatron::CheckRequest(bytes);
      break;
    case 6:
      megatron::CheckReply(bytes);
      megatron::CheckWaitingCalls(bytes);
      break;
  }
  return 0;
}
