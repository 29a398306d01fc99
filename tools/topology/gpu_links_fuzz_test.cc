// Whatever the text: an error that says something, or a square table with a domain that divides it.

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "tools/topology/gpu_links.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto links =
      megatron::ParseGpuLinks(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!links.ok()) {
    CHECK(!links.status().message().empty());
    return 0;
  }
  CHECK_GE(links->gpus, 1);
  CHECK_EQ(links->between.size(), static_cast<size_t>(links->gpus));
  for (const auto& row : links->between) CHECK_EQ(row.size(), static_cast<size_t>(links->gpus));
  CHECK_EQ(links->gpus % links->Domain(), 0);
  return 0;
}
