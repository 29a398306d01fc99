// Any bytes as a manifest, sealed with the right checksum or not, and as a shard's header.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/crc32c.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/shard_header.h"

namespace {

// The first line: {"crc32c":"01234567",
constexpr size_t kFirstLineBytes = 22;

void TestManifest(absl::string_view text) {
  const absl::StatusOr<megatron::Manifest> manifest = megatron::ParseManifest(text);
  if (!manifest.ok()) return;
  CHECK(megatron::SerializeManifest(*manifest) == text);
  megatron::CheckComplete(*manifest).IgnoreError();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  TestManifest(input);
  // Random search does not find checksums, so they are repaired.
  const absl::string_view body = input.substr(std::min(size, kFirstLineBytes));
  TestManifest(absl::StrFormat("{\"crc32c\":\"%08x\",\n%s", megatron::Crc32c(body), body));

  const auto header = megatron::DecodeShardHeader(input);
  if (header.ok()) CHECK(megatron::EncodeShardHeader(*header) == input.substr(0, 128));
  return 0;
}
