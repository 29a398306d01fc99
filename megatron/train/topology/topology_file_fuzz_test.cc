// Whatever the text: an error that says something, or a shape for which an order of ranks is chosen
// or refused without a crash, and which is read back from what is written.

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/train/topology/choose_rank_order.h"
#include "megatron/train/topology/topology_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto shape =
      megatron::ParseTopology(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!shape.ok()) {
    CHECK(!shape.status().message().empty());
    return 0;
  }
  const auto again = megatron::ParseTopology(megatron::FormatTopology(*shape));
  CHECK(again.ok()) << again.status();
  megatron::ParallelSizes sizes;
  sizes.tensor = sizes.pipeline = 2;
  megatron::AxisTraffic row;
  row.name = "tp";
  row.axes = {megatron::Axis::kTensor};
  row.calls = row.bytes = 1000;
  const auto choice =
      megatron::ChooseRankOrder(*shape, {row}, sizes, /*ranks=*/8, /*is_written=*/false);
  CHECK(choice.ok() ? !choice->reason.empty() : !choice.status().message().empty());
  return 0;
}
