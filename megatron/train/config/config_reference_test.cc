#include "megatron/train/config/config_reference.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(ExplainFieldTest, PrintsTypeRangeUnitDefaultConditionAndProse) {
  EXPECT_THAT(ExplainField("logging.profile_step_start"),
              IsOkAndHolds("logging.profile_step_start\n"
                           "  takes an integer from 0 to 1000000000000 (iterations)\n"
                           "  default 10\n"
                           "\n"
                           "Number of iterations that are done before the first one that is "
                           "profiled.\n"
                           "\n"
                           "It has an effect only if logging.profile is true.\n"));
}

TEST(ExplainFieldTest, PrintsHowAValueIsComputed) {
  EXPECT_THAT(
      ExplainField("kv_channels"),
      IsOkAndHolds(HasSubstr("  computed: hidden_size / num_attention_heads; with multi_latent")));
}

TEST(ExplainFieldTest, PrintsWhatTheValuesOfAnEnumerationMean) {
  EXPECT_THAT(
      ExplainField("optimizer.optimizer"),
      IsOkAndHolds(AllOf(HasSubstr("  takes one of adam, sgd, lion, muon, lamb, onebit_adam, "
                                   "zero_one_adam, onebit_lamb\n"),
                         HasSubstr("  adam: AdamW: the decay is decoupled.\n"))));
}

TEST(ExplainFieldTest, LeavesOutValuesThatAreNotAvailable) {
  EXPECT_THAT(ExplainField("fp8_recipe"),
              IsOkAndHolds(HasSubstr("  takes one of tensorwise, delayed, blockwise\n")));
}

TEST(ExplainFieldTest, ListsTheFieldsOfAMessage) {
  EXPECT_THAT(ExplainField("rampup_batch_size"),
              IsOkAndHolds(HasSubstr("  takes fields in braces: start, increment, samples\n")));
}

TEST(ExplainFieldTest, ListsTheFieldsOfASection) {
  const absl::StatusOr<std::string> text = ExplainField("optimizer");
  ASSERT_THAT(text, absl_testing::IsOk());
  EXPECT_THAT(*text, StartsWith("optimizer\n\n"));
  EXPECT_THAT(*text, EndsWith("\n\n--explain optimizer.optimizer prints all about one field.\n"));
  const auto& section = *config::OptimizerConfig::descriptor();
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n');
  for (int i = 0; i < section.field_count(); ++i) {
    const std::string start = absl::StrCat("  ", section.field(i)->name(), "  ");
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                            [&](const std::string& line) {
                              return absl::StartsWith(line, start) && line.size() > start.size();
                            }),
              1)
        << section.field(i)->name();
  }
  for (const std::string& line : lines) EXPECT_LE(line.size(), 100u) << line;
}

TEST(ExplainFieldTest, PrintsWholeFirstSentencesAtAnyWidth) {
  constexpr char kSentence[] =
      "Each expert's score gets a bias, for the choice alone, that rises after steps in which the "
      "expert was chosen less than the average and falls after others: balance without a loss\n";
  for (const size_t columns : {100, 80, 60}) {
    const absl::StatusOr<std::string> text = ExplainField("model", columns);
    ASSERT_THAT(text, absl_testing::IsOk());
    for (const absl::string_view line : absl::StrSplit(*text, '\n'))
      EXPECT_LE(line.size(), columns) << line;
    std::string joined = *text;
    size_t size;
    do {
      size = joined.size();
      joined = absl::StrReplaceAll(joined, {{"\n   ", " "}, {"  ", " "}});
    } while (joined.size() < size);
    EXPECT_THAT(joined, HasSubstr(absl::StrCat("moe_router_enable_expert_bias ", kSentence)));
  }
}

TEST(ExplainFieldTest, AcceptsTheEndOfAPathThatNamesOneField) {
  EXPECT_THAT(ExplainField("sequence_parallel"),
              IsOkAndHolds(StartsWith("parallel.sequence_parallel\n")));
  EXPECT_THAT(ExplainField("stories.seed"), IsOkAndHolds(StartsWith("data.stories.seed\n")));
}

TEST(ExplainFieldTest, NamesTheFieldsThatANameFits) {
  EXPECT_THAT(ExplainField("seed"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       EndsWith("train.seed, data.stories.seed, generation.seed")));
}

TEST(ExplainFieldTest, SuggestsTheNearestName) {
  EXPECT_THAT(
      ExplainField("parallel.sequence_paralel"),
      StatusIs(absl::StatusCode::kNotFound, EndsWith("did you mean parallel.sequence_parallel?")));
  EXPECT_THAT(ExplainField("num_layer"),
              StatusIs(absl::StatusCode::kNotFound, EndsWith("did you mean num_layers?")));
  EXPECT_THAT(ExplainField("?"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(ExplainFieldTest, OffersTheFieldsThatContainAWord) {
  EXPECT_THAT(ExplainField("zeros").status().message(),
              HasSubstr("these contain it: logging.log_num_zeros_in_grad"));
  // A word that is in many names helps nobody.
  EXPECT_THAT(ExplainField("_s").status().message(), Not(HasSubstr("these contain it")));
}

TEST(ExplainFieldTest, OffersTheFieldsWhoseTextHasAWord) {
  EXPECT_THAT(ExplainField("nccl").status().message(), HasSubstr("; these speak of it: parallel."));
  EXPECT_THAT(ExplainField("zzz").status().message(), Not(HasSubstr("speak of it")));
}

TEST(WithReferenceTest, ReplacesWhatIsBetweenTheMarks) {
  const absl::StatusOr<std::string> page =
      WithReference("before\n<!-- reference: begin, made -->\nold\n<!-- reference: end -->\nafter");
  ASSERT_THAT(page, absl_testing::IsOk());
  EXPECT_THAT(*page, AllOf(StartsWith("before\n<!-- reference: begin, made -->\n\n### model\n"),
                           HasSubstr("- **`seq_length`**: an integer from 1 to 16777216 (tokens); "
                                     "required. Tokens of a sample."),
                           EndsWith("<!-- reference: end -->\nafter")));
  EXPECT_THAT(WithReference(*page), IsOkAndHolds(*page));
}

TEST(WithReferenceTest, RefusesAPageWithoutTheMarks) {
  EXPECT_THAT(WithReference("a page"), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
