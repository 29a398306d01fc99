#include "megatron/train/validate/validation_errors.h"

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config_parser.h"

namespace megatron {

std::vector<std::string> ErrorsOf(const std::string& config, const ConfigOverrides& overrides,
                                  ConfigPurpose purpose) {
  const ParsedConfig parsed = ParseConfig(config, "x", overrides);
  EXPECT_THAT(parsed.errors, ::testing::IsEmpty());
  std::vector<std::string> texts;
  for (const ConfigError& error : Validate(parsed.config, parsed.locations, purpose))
    texts.push_back(ToString(error));
  return texts;
}

void ExpectEachIsRefused(const std::string& config,
                         const std::vector<std::pair<ConfigOverrides, std::string>>& cases) {
  for (const auto& [overrides, text] : cases) {
    EXPECT_THAT(ErrorsOf(config, overrides), ::testing::Contains(::testing::HasSubstr(text)))
        << absl::StrJoin(overrides, " ");
  }
}

void ExpectOnlyError(const std::vector<std::pair<ConfigOverrides, std::string>>& cases) {
  for (const auto& [overrides, text] : cases) {
    EXPECT_THAT(ErrorsOf(kGoodConfig, overrides),
                ::testing::ElementsAre(::testing::HasSubstr(text)))
        << absl::StrJoin(overrides, " ");
  }
}

}  // namespace megatron
