#include "megatron/train/preflight/resolve_paths.h"

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/config/config_paths.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::google::protobuf::FieldDescriptor;
using ::testing::HasSubstr;

// The paths that ResolvePaths leaves as they are, because a configuration keeps them as they were
// written, and the function that resolves them.
const std::map<std::string, std::string>& ResolvedLater() {
  static const auto* const fields = new std::map<std::string, std::string>{
      {"checkpoint.local_save", "LocalDirectory"}, {"data.data_path", "OpenData"},
      {"data.train_data_path", "OpenData"},        {"data.valid_data_path", "OpenData"},
      {"data.test_data_path", "OpenData"},         {"data.per_split_data_args_path", "OpenData"},
      {"data.data_args_path", "OpenData"},         {"data.data_cache_path", "OpenData"},
      {"train.eval_tasks", "OpenTasks"},           {"system.attention_plan_file", "OpenAttention"},
      {"system.gemm_plan_file", "OpenGemmPlans"}};
  return *fields;
}

// The texts that are no paths.
const std::set<std::string>& NoPaths() {
  static const auto* const fields =
      new std::set<std::string>{"model.moe_layer_freq",
                                "model.hybrid_layer_pattern",
                                "model.window_attn_skip_freq",
                                "model.no_rope_freq",
                                "model.lora.target_modules",
                                "optimizer.freeze",
                                "parallel.pipeline_schedule",
                                "parallel.rank_order",
                                "parallel.tensor_parallel_mode",
                                "train.step_batch_size_schedule",
                                "train.validation_set_names",
                                "parallel.pipeline_model_parallel_layout",
                                "data.split",
                                "diloco.server_address",
                                "data.tiktoken_special_tokens",
                                "data.fim_data.fim_split_sample",
                                "data.fim_data.fim_no_prefix",
                                "data.fim_data.fim_prefix_token",
                                "data.fim_data.fim_middle_token",
                                "data.fim_data.fim_suffix_token",
                                "data.fim_data.fim_pad_token",
                                "data.fim_data.fim_eod_token",
                                "generation.prompt",
                                "logging.on_event"};
  return *fields;
}

class ResolvePathsTest : public ::testing::Test {
 protected:
  ResolvePathsTest() { setenv("BUILD_WORKING_DIRECTORY", "/home/user", 1); }
  ~ResolvePathsTest() override { unsetenv("BUILD_WORKING_DIRECTORY"); }

  // Returns the configuration of these overrides, with its paths resolved.
  config::PretrainConfig Resolved(const std::vector<std::string>& overrides) {
    ParsedConfig parsed = ParseConfig("", "x", overrides);
    EXPECT_TRUE(parsed.errors.empty());
    EXPECT_THAT(ResolvePaths(disk_, "run.textproto", &parsed.config), IsOk());
    return parsed.config;
  }

  MemoryFileSystem disk_;
};

TEST_F(ResolvePathsTest, EveryFieldThatMayBeAPathIsKnown) {
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    const FieldRef empty = Resolve(config::PretrainConfig::default_instance(), path);
    if (empty.field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) continue;
    const config::PretrainConfig config = Resolved({absl::StrCat(path, "=notes.txt")});
    const std::string value = ValueText(Resolve(config, path));
    const bool resolved = absl::StrContains(value, "\"/home/user/notes.txt\"");
    EXPECT_NE(resolved, ResolvedLater().count(path) + NoPaths().count(path) == 1)
        << path << " became " << value
        << ". If it is a path, ResolvePaths must resolve it; the lists above name the others.";
  }
}

TEST_F(ResolvePathsTest, AbsolutePathsStay) {
  const config::PretrainConfig config =
      Resolved({"checkpoint.save=/save", "data.vocab_file=/vocab.json"});
  EXPECT_EQ(config.checkpoint().save(), "/save");
  EXPECT_EQ(config.data().vocab_file(), "/vocab.json");
}

TEST_F(ResolvePathsTest, ATokenizerThatWasMovedWithItsConfigurationIsFoundBesideIt) {
  ASSERT_THAT(disk_.CreateDirs("/home/user/tokenizer"), IsOk());
  for (const char* path : {"/home/user/run.textproto", "/home/user/tokenizer/vocab.json"})
    ASSERT_THAT(WriteFileAtomically(disk_, path, "text"), IsOk());
  const config::PretrainConfig config =
      Resolved({"data.vocab_file=/gone/vocab.json", "data.merge_file=/gone/merges.txt"});
  EXPECT_EQ(config.data().vocab_file(), "/home/user/tokenizer/vocab.json");
  EXPECT_EQ(config.data().merge_file(), "/gone/merges.txt");
}

TEST_F(ResolvePathsTest, AConfigurationWithoutANameIsAnError) {
  const std::vector<const char*> directories = {"/home/user", nullptr};
  for (const char* directory : directories) {
    if (directory == nullptr) unsetenv("BUILD_WORKING_DIRECTORY");
    config::PretrainConfig config;
    EXPECT_THAT(ResolvePaths(disk_, "", &config),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--config=FILE")));
  }
}

TEST_F(ResolvePathsTest, ARelativePathInADirectoryThatIsGoneIsAnError) {
  unsetenv("BUILD_WORKING_DIRECTORY");
  const std::filesystem::path before = std::filesystem::current_path(),
                              gone = std::filesystem::path(::testing::TempDir()) / "gone";
  std::filesystem::create_directories(gone);
  std::filesystem::current_path(gone);
  std::filesystem::remove(gone);
  config::PretrainConfig config;
  const absl::Status of_name = ResolvePaths(disk_, "run.textproto", &config);
  const absl::Status of_full_name = ResolvePaths(disk_, "/run.textproto", &config);
  config.mutable_data()->set_vocab_file("vocab.json");
  const absl::Status of_field = ResolvePaths(disk_, "/run.textproto", &config);
  std::filesystem::current_path(before);
  EXPECT_THAT(of_name,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'run.textproto'")));
  EXPECT_THAT(of_full_name, IsOk());
  EXPECT_THAT(of_field, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'vocab.json'")));
}

}  // namespace
}  // namespace megatron
