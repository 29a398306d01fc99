// Any bytes as a config.json. What is read can be written, and then reads as the same model.

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/models/huggingface/hf_weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto options =
      megatron::ParseHfConfig(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!options.ok()) return 0;
  const auto text = megatron::HfConfigJson(*options, {});
  CHECK(text.ok()) << text.status();
  const auto again = megatron::ParseHfConfig(*text);
  CHECK(again.ok()) << again.status() << "\n" << *text;
  CHECK(*megatron::HfConfigJson(*again, {}) == *text);
  if (options->transformer.num_layers > 8) return 0;
  for (const megatron::HfTensor& tensor : megatron::HfTensors(*options)) {
    CHECK_GT(tensor.rows, 0);
    CHECK_GT(tensor.columns, 0);
    const int64_t rows = tensor.parameter_shape.numel() / tensor.columns;
    CHECK_LT(tensor.row(0), rows);
    CHECK_LT(tensor.row(tensor.rows - 1), rows);
  }
  return 0;
}
