#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/validate/validate.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kGood[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "parallel { data_parallel_size: 2 pipeline_model_parallel_size: 2 }\n"
    "optimizer { lr: 1e-3 }\n"
    "train { micro_batch_size: 2 train_iters: 100 }\n"
    "data { mock_data: true }\n"
    "logging { profile: true }\n";

std::vector<std::string> ErrorsWith(const std::vector<std::string>& overrides) {
  const ParsedConfig parsed = ParseConfig(kGood, "x", overrides);
  EXPECT_THAT(parsed.errors, IsEmpty());
  std::vector<std::string> texts;
  for (const ConfigError& error : Validate(parsed.config, parsed.locations, ConfigPurpose::kDryRun))
    texts.push_back(ToString(error));
  return texts;
}

TEST(ValidateProfileTest, AcceptsWhatWorks) {
  EXPECT_THAT(ErrorsWith({}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"logging.profile_ranks=[0, 3]", "logging.profile_dir=here",
                          "logging.profile_step_start=0", "logging.profile_step_end=1"}),
              IsEmpty());
  EXPECT_THAT(ErrorsWith({"logging.profile_step_start=99", "logging.profile_step_end=200"}),
              IsEmpty());
}

TEST(ValidateProfileTest, RefusesEachBrokenRuleByName) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"logging.profile=false", "logging.profile_step_start=3"},
       "with logging.profile = false (--set logging.profile=false)"},
      {{"logging.profile=false", "logging.profile_step_end=3"},
       "with logging.profile = false (--set logging.profile=false)"},
      {{"logging.profile=false", "logging.profile_ranks=1"},
       "with logging.profile = false (--set logging.profile=false)"},
      {{"logging.profile=false", "logging.profile_dir=x"},
       "with logging.profile = false (--set logging.profile=false)"},
      {{"logging.profile_dir=\"\""}, "expects the name of a directory"},
      {{"logging.prometheus_textfile=x.txt"}, "expects the name of a file that ends in .prom"},
      {{"logging.profile_step_end=10"}, "must be more than logging.profile_step_start"},
      {{"logging.profile_step_start=100", "logging.profile_step_end=101"},
       "must be less than train.train_iters"},
      {{"logging.profile_ranks=4"}, "there is no rank 4: 'parallel' makes 4"},
      {{"logging.profile_ranks=-1"}, "holds -1; each is an integer from 0 to 1048576"},
      {{"logging.profile_ranks=[1, 1]"}, "names rank 1 twice"},
  };
  for (const auto& [overrides, text] : cases) {
    EXPECT_THAT(ErrorsWith(overrides), ElementsAre(HasSubstr(text)))
        << absl::StrJoin(overrides, " ");
  }
}

}  // namespace
}  // namespace megatron
