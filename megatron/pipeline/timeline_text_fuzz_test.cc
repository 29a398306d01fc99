// Whatever the text: timelines whose mean costs can be taken, or an error that says something.

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/pipeline/check_schedule.h"
#include "megatron/pipeline/timeline_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto measured =
      megatron::ParseTimelineText(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!measured.ok()) {
    CHECK(!measured.status().message().empty());
    return 0;
  }
  const auto predicted =
      megatron::CheckSchedule(measured->schedule, megatron::MeanCosts(*measured));
  CHECK(predicted.ok() || !predicted.status().message().empty());
  return 0;
}
