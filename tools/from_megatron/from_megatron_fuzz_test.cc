// Tests that no script and no ds_config.json crashes the translation, and that what it writes is a
// configuration.
//
// The input is a ds_config.json if it begins with '{', else a script.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/train/configs/config_loader.h"
#include "tools/from_megatron/from_megatron.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  megatron::FromMegatronInput input;
  const bool is_json = !text.empty() && text[0] == '{';
  (is_json ? input.deepspeed : input.script) = text;
  input.source = "fuzz";
  input.deepspeed_source = "fuzz.json";
  input.arguments = {"one", "two words"};
  const absl::StatusOr<megatron::FromMegatronResult> result = megatron::FromMegatron(input);
  if (!result.ok()) return 0;
  const absl::StatusOr<megatron::LoadedConfig> loaded =
      megatron::LoadConfigFromString(result->text, "fuzz", {}, megatron::ConfigPurpose::kDryRun);
  CHECK_EQ(loaded.ok(), result->errors.empty()) << loaded.status() << "\n" << result->text;
  return 0;
}
