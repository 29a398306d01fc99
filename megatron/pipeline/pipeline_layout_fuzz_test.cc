// Whatever the text: numbers of layers within the limits, or an error that says something.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/pipeline/pipeline_layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto layout =
      megatron::ParsePipelineLayout(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!layout.ok()) {
    CHECK(!layout.status().message().empty());
    return 0;
  }
  const std::vector<int64_t>& layers = layout->layers;
  CHECK(!layers.empty());
  CHECK_LE(std::accumulate(layers.begin(), layers.end(),
                           static_cast<int64_t>(layers.size()) + layout->mtp_layers),
           100'000);
  CHECK(!layout->mtp_before_last ||
        (layout->mtp_layers > 0 && layers.size() > 1 && layers.back() == 0));
  return 0;
}
