// Tests that no text crashes the parser of configurations, that protobuf's own parser accepts all
// that this one accepts, with the same meaning, and that this one reads what it has written.
//
// The input is a configuration, or overrides, one on each line, followed by an empty line and a
// configuration.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

class SilentErrors : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

void CheckAgainstTextFormat(const std::string& text) {
  const ParsedConfig parsed = ParseConfig(text, "fuzz");
  if (!parsed.errors.empty()) return;
  SilentErrors silent;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&silent);
  config::PretrainConfig expected;
  CHECK(parser.ParseFromString(text, &expected)) << "protobuf refuses a text that we take";
  CHECK_EQ(parsed.config.SerializeAsString(), expected.SerializeAsString());
}

void CheckWhatIsWrittenOut(const std::string& text, const std::vector<std::string>& overrides) {
  const absl::StatusOr<LoadedConfig> loaded =
      LoadConfigFromString(text, "fuzz", overrides, ConfigPurpose::kDryRun);
  if (!loaded.ok()) return;
  const std::string written = EffectiveConfigText(loaded->config, loaded->locations);
  const absl::StatusOr<LoadedConfig> again =
      LoadConfigFromString(written, "written", {}, ConfigPurpose::kDryRun);
  CHECK(again.ok()) << again.status() << "\n" << written;
  CHECK_EQ(EffectiveConfigText(again->config), EffectiveConfigText(loaded->config));
}

}  // namespace
}  // namespace megatron

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  megatron::CheckAgainstTextFormat(std::string(input));
  megatron::CheckWhatIsWrittenOut(std::string(input), {});
  const size_t gap = input.find("\n\n");
  if (gap != absl::string_view::npos) {
    megatron::CheckWhatIsWrittenOut(std::string(input.substr(gap + 2)),
                                    absl::StrSplit(input.substr(0, gap), '\n'));
  }
  return 0;
}
