// Whatever the text: a list of layers within the limits, or an error that says something.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/pipeline/pipeline_layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto layers =
      megatron::ParsePipelineLayout(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!layers.ok()) {
    CHECK(!layers.status().message().empty());
    return 0;
  }
  CHECK(!layers->empty());
  CHECK_LE(std::accumulate(layers->begin(), layers->end(), static_cast<int64_t>(layers->size())),
           100'000);
  return 0;
}
