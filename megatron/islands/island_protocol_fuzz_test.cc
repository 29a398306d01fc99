// No bytes crash the reader of islands' messages; and what it takes, it takes again when it is
// written out.

#include <cstddef>
#include <cstdint>
#include <string>

#include "glog/logging.h"
#include "megatron/islands/island_protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  megatron::IslandMessageLength(bytes.substr(0, megatron::kIslandLengthBytes)).IgnoreError();
  const auto message = megatron::DecodeIslandMessage(bytes);
  if (!message.ok()) return 0;
  const std::string frame = megatron::EncodeIslandMessage(*message);
  CHECK(absl::string_view(frame).substr(megatron::kIslandLengthBytes) == bytes);
  return 0;
}
