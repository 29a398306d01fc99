// Sections that a program adds are described by texts here, and by own_sections_test.proto.

#include "megatron/train/config/own_sections.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/compiler/parser.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_reference.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/config/own_sections_test.pb.h"
#include "megatron/train/validate/validate.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kConfig[] = R"(
  model { num_layers: 2 hidden_size: 32 num_attention_heads: 2 seq_length: 32 }
  optimizer { lr: 1e-3 }
  train { micro_batch_size: 2 train_iters: 3 }
  data { stories {} }
)";

// Returns what CheckOwnSection says about the extension `own` of a schema with these messages.
absl::Status Check(const std::string& own, const std::string& messages) {
  const std::string text = absl::StrCat(
      "syntax = 'proto2'; package other; import 'megatron/train/config/config.proto';"
      "import 'megatron/train/config/field_rules.proto';",
      messages, "extend megatron.config.PretrainConfig { ", own, " }");
  google::protobuf::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  google::protobuf::io::Tokenizer tokenizer(&stream, /*error_collector=*/nullptr);
  google::protobuf::FileDescriptorProto file;
  EXPECT_TRUE(google::protobuf::compiler::Parser().Parse(&tokenizer, &file)) << text;
  file.set_name("other.proto");
  config::PretrainConfig::descriptor();  // makes the generated pool know the imported file
  google::protobuf::DescriptorPool pool(google::protobuf::DescriptorPool::generated_pool());
  const google::protobuf::FileDescriptor* const built = pool.BuildFile(file);
  EXPECT_NE(built, nullptr) << text;
  return built == nullptr ? absl::UnknownError("not built") : CheckOwnSection(*built->extension(0));
}

std::string Message(const std::string& field) {
  return absl::StrCat("message Own { ", field, " }");
}

constexpr char kSection[] = "optional Own own = 2000 [(megatron.config.rules) = {help: 'x'}];";

TEST(CheckOwnSectionTest, AcceptsFieldsThatTheCheckerKnows) {
  EXPECT_THAT(Check(kSection, Message("optional int64 a = 1 "
                                      "[(megatron.config.rules) = {min: 0 help: 'x'}];"
                                      "repeated string b = 2 "
                                      "[(megatron.config.rules) = {help: 'x'}];")),
              IsOk());
  CheckOwnSections();
}

TEST(CheckOwnSectionTest, RefusesWhatTheCheckerWouldPassOver) {
  EXPECT_THAT(Check(kSection, Message("optional int64 a = 1 "
                                      "[(megatron.config.rules) = {help: 'x'}];")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("other.Own.a of the configuration has neither min nor above")));
  EXPECT_THAT(Check(kSection, Message("optional int32 a = 1 "
                                      "[(megatron.config.rules) = {min: 0 help: 'x'}];")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has the type int32")));
  EXPECT_THAT(Check(kSection, Message("optional bool a = 1;")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has no help")));
  EXPECT_THAT(Check("optional Own own = 2000;", Message("")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has no help")));
  EXPECT_THAT(
      Check("repeated Own own = 2000 [(megatron.config.rules) = {help: 'x'}];", Message("")),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is a list")));
  EXPECT_THAT(Check("optional int64 own = 2000;", ""),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is no message")));
}

TEST(CheckOwnSectionTest, RefusesTheNameOfAnotherSection) {
  EXPECT_THAT(
      Check("optional Own model = 2000 [(megatron.config.rules) = {help: 'x'}];", Message("")),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("name of another")));
}

TEST(OwnSectionTest, IsReadFromAFileAndByOverrides) {
  const ParsedConfig parsed =
      ParseConfig(absl::StrCat(kConfig, "alarm { after: 2.5 }"), "x", {"alarm.command=ring twice"});
  EXPECT_THAT(parsed.errors, IsEmpty());
  const test::AlarmConfig& alarm = parsed.config.GetExtension(test::alarm);
  EXPECT_EQ(alarm.after(), 2.5);
  EXPECT_EQ(alarm.command(), "ring twice");
  EXPECT_EQ(alarm.kind(), test::AlarmConfig::slow);
}

TEST(OwnSectionTest, IsWrittenWithTheConfigurationAndReadAgain) {
  ParsedConfig parsed = ParseConfig(kConfig, "x", {"alarm.command=ring"});
  ResolveDefaults(&parsed.config);
  const std::string text = EffectiveConfigText(parsed.config);
  EXPECT_THAT(text, HasSubstr("alarm {\n  after: 1\n  command: \"ring\"\n  kind: slow\n}\n"));
  EXPECT_EQ(EffectiveConfigText(ParseConfig(text, "x").config), text);
}

TEST(OwnSectionTest, HasItsRulesChecked) {
  const auto errors = [](const std::string& override_text) {
    const ParsedConfig parsed = ParseConfig(kConfig, "x", {override_text});
    std::string text;
    for (const auto& list : {parsed.errors, Validate(parsed.config, parsed.locations)}) {
      for (const ConfigError& error : list) absl::StrAppend(&text, ToString(error), "\n");
    }
    return text;
  };
  EXPECT_EQ(errors("alarm.command=ring"), "");
  EXPECT_THAT(errors("alarm.after=-1"),
              AllOf(HasSubstr("alarm.after = -1: expects a number from 0"),
                    HasSubstr("alarm.command: is required by alarm")));
  EXPECT_THAT(errors("alarm.comand=x"), HasSubstr("did you mean command?"));
  EXPECT_THAT(errors("alarm={command: \"x\" kind: any after: 3}"),
              HasSubstr("alarm.after = 3: has no effect with alarm.kind = any"));
  EXPECT_THAT(errors("alarn.after=1"), HasSubstr("did you mean alarm?"));
}

TEST(OwnSectionTest, IsExplained) {
  EXPECT_THAT(ExplainField("alarm"),
              IsOkAndHolds(AllOf(StartsWith("alarm\n\nCalls somebody.\n"),
                                 HasSubstr("  command  The program to start\n"))));
  EXPECT_THAT(ExplainField("after"), IsOkAndHolds(HasSubstr("alarm.after\n  takes a number from 0 "
                                                            "to 3600 (seconds)\n  default 1\n")));
  EXPECT_THAT(ExplainField("alarm.kind"), IsOkAndHolds(HasSubstr("takes one of slow, any\n")));
}

TEST(OwnSectionTest, IsPassedOverByProgramsWithoutIt) {
  const std::string text = absl::StrCat(kConfig, "stranger { field: 3 }");
  EXPECT_THAT(ParseConfig(text, "x").errors, Not(IsEmpty()));
  EXPECT_THAT(ParseConfig(text, "x", {}, UnknownSections::kIgnore).errors, IsEmpty());
  EXPECT_THAT(
      ParseConfig(absl::StrCat(kConfig, "model { nothing: 3 }"), "x", {}, UnknownSections::kIgnore)
          .errors,
      Not(IsEmpty()));
}

TEST(OwnSectionTest, ComesAfterTheSectionsOfTheSchema) {
  const std::vector<std::string> paths = AllPaths(*config::PretrainConfig::descriptor());
  EXPECT_THAT(std::vector<std::string>(paths.end() - 4, paths.end()),
              ElementsAre("alarm", "alarm.after", "alarm.command", "alarm.kind"));
  EXPECT_THAT(LeafPaths(*config::PretrainConfig::descriptor()), Contains("alarm.after"));
}

}  // namespace
}  // namespace megatron
