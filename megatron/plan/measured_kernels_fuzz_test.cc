// Whatever the table: an error that says something, or shares of the peak that can be divided by.

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/plan/csv_table.h"
#include "megatron/plan/measured_kernels.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto table =
      megatron::ParseCsv(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!table.ok()) return 0;
  const auto kernels = megatron::MeasuredKernels::Parse(*table);
  if (!kernels.ok()) {
    CHECK(!kernels.status().message().empty());
    return 0;
  }
  for (const char* kernel : {"product", "grouped", "attention"}) {
    for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
      const auto share = kernels->ShareOfPeak("B200", {kernel, pass, 4096, 8192, 8192});
      if (share.has_value()) CHECK(*share >= 0.9e-6 && *share <= 2.1) << *share;
    }
  }
  return 0;
}
