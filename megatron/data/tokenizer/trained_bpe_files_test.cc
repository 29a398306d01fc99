#include "megatron/data/tokenizer/trained_bpe_files.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

TrainedBpe Bpe() {
  TrainedBpe bpe;
  bpe.tokens = {"<a\"\n\\>", "\"", "\\", "Ġ", "\"\\", "Ġ\"\\"};
  bpe.num_special_tokens = 1;
  bpe.merges = {{1, 2}, {3, 4}};
  return bpe;
}

TEST(TrainedBpeFilesTest, TheVocabularyIsJsonInTheOrderOfIds) {
  EXPECT_EQ(VocabJson(Bpe()), R"({"<a\"\u000a\\>":0,"\"":1,"\\":2,"Ġ":3,"\"\\":4,"Ġ\"\\":5})");
}

TEST(TrainedBpeFilesTest, MergesAreLinesBelowTheVersion) {
  EXPECT_EQ(MergesText(Bpe()), "#version: 0.2\n\" \\\nĠ \"\\\n");
}

TEST(TrainedBpeFilesTest, TokenizerJsonHoldsAll) {
  const auto split = FindNamedSplitPattern("gpt2");
  ASSERT_THAT(split, IsOk());
  const auto json = nlohmann::json::parse(TokenizerJson(Bpe(), *split));
  EXPECT_EQ(json["model"]["vocab"]["Ġ\"\\"], 5);
  EXPECT_EQ(json["model"]["merges"], nlohmann::json({"\" \\", "Ġ \"\\"}));
  EXPECT_EQ(json["added_tokens"].size(), 1u);
  EXPECT_EQ(json["added_tokens"][0]["content"], "<a\"\n\\>");
  EXPECT_EQ(json["added_tokens"][0]["special"], true);
  EXPECT_EQ(json["pre_tokenizer"]["use_regex"], true);
}

TEST(TrainedBpeFilesTest, OtherPatternsAreWrittenAsRegularExpressions) {
  for (const std::string name : {"llama3", "qwen2", "o200k"}) {
    const auto split = FindNamedSplitPattern(name);
    ASSERT_THAT(split, IsOk());
    const auto json = nlohmann::json::parse(TokenizerJson(Bpe(), *split));
    const auto& steps = json["pre_tokenizer"]["pretokenizers"];
    EXPECT_EQ(steps[0]["pattern"]["Regex"], std::string(split->regex));
    EXPECT_EQ(steps[1]["use_regex"], false);
  }
}

TEST(TrainedBpeFilesTest, AnUnknownPatternIsAnErrorThatListsTheKnownOnes) {
  EXPECT_THAT(FindNamedSplitPattern("gpt5"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'gpt5'; there are gpt2, llama3, qwen2, o200k")));
}

}  // namespace
}  // namespace megatron
