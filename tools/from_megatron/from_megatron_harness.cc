#include "tools/from_megatron/from_megatron_harness.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {

using ::absl_testing::IsOk;
using ::google::protobuf::TextFormat;
using ::google::protobuf::util::MessageDifferencer;

std::string ReadTestFile(const std::string& name) {
  std::ifstream file("tools/from_megatron/testdata/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

absl::StatusOr<FromMegatronResult> TranslateFile(const std::string& name,
                                                 const std::vector<std::string>& arguments) {
  FromMegatronInput input;
  input.source = name;
  input.script = ReadTestFile(name);
  input.arguments = arguments;
  return FromMegatron(input);
}

absl::StatusOr<FromMegatronResult> TranslateLine(const std::string& line) {
  FromMegatronInput input;
  input.source = "line";
  input.script = line;
  return FromMegatron(input);
}

FromMegatronResult Small(const std::string& flags) {
  absl::StatusOr<FromMegatronResult> result = TranslateLine(kSmall + flags);
  EXPECT_THAT(result, IsOk());
  return result.ok() ? *std::move(result) : FromMegatronResult();
}

std::vector<std::string> Texts(const FromMegatronResult& result, Effect effect) {
  std::vector<std::string> texts;
  for (const Finding& finding : result.findings) {
    if (finding.effect == effect)
      texts.push_back(absl::StrCat(finding.subject, ": ", finding.text));
  }
  return texts;
}

std::vector<std::string> Subjects(const FromMegatronResult& result, Effect effect) {
  std::vector<std::string> subjects;
  for (const Finding& finding : result.findings) {
    if (finding.effect == effect)
      subjects.push_back(std::string(*absl::StrSplit(finding.subject, ' ').begin()));
  }
  return subjects;
}

void ExpectTextIsConfig(const FromMegatronResult& result) {
  config::PretrainConfig parsed;
  ASSERT_TRUE(TextFormat::ParseFromString(result.text, &parsed)) << result.text;
  EXPECT_TRUE(MessageDifferencer::Equals(parsed, result.config)) << result.text;
  const auto loaded = LoadConfigFromString(result.text, "text", {}, ConfigPurpose::kDryRun);
  EXPECT_EQ(loaded.ok(), result.errors.empty()) << loaded.status();
}

void ExpectGolden(const absl::StatusOr<FromMegatronResult>& result, const std::string& name) {
  ASSERT_THAT(result, IsOk());
  ExpectTextIsConfig(*result);
  EXPECT_EQ(result->text, ReadTestFile(name));
}

}  // namespace megatron
