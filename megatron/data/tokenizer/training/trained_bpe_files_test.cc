#include "megatron/data/tokenizer/training/trained_bpe_files.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/thread_pool.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/data/tokenizer/training/word_counts.h"
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

TEST(TrainedBpeFilesTest, VocabJsonIsInTheOrderOfIds) {
  EXPECT_EQ(VocabJson(Bpe()), R"({"<a\"\u000a\\>":0,"\"":1,"\\":2,"Ġ":3,"\"\\":4,"Ġ\"\\":5})");
}

TEST(TrainedBpeFilesTest, MergesFollowTheVersionLine) {
  EXPECT_EQ(MergesText(Bpe()), "#version: 0.2\n\" \\\nĠ \"\\\n");
}

TEST(TrainedBpeFilesTest, TokenizerJsonHoldsTheWholeTokenizer) {
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
  for (const std::string name : {"llama3", "qwen2", "o200k", "tekken"}) {
    const auto split = FindNamedSplitPattern(name);
    ASSERT_THAT(split, IsOk());
    const auto json = nlohmann::json::parse(TokenizerJson(Bpe(), *split));
    const auto& steps = json["pre_tokenizer"]["pretokenizers"];
    EXPECT_EQ(steps[0]["pattern"]["Regex"], std::string(split->regex));
    EXPECT_EQ(steps[1]["use_regex"], false);
  }
}

// Trains on `text` and writes the three files to a new directory.
std::string WriteTrained(absl::string_view text, const NamedSplitPattern& split) {
  WordCounts words;
  words.AddText(text, FirstPieceOf(split.pattern));
  BpeTrainerOptions options;
  options.special_tokens = {"<|endoftext|>"};
  ThreadPool pool(1);
  const auto bpe = TrainBpe(words, options, &pool, [](int32_t) {});
  EXPECT_THAT(bpe, IsOk());
  const std::string directory = JoinPath(::testing::TempDir(), absl::StrCat("bpe_", split.name));
  FileSystem& fs = PosixFileSystem();
  EXPECT_THAT(fs.CreateDirs(directory), IsOk());
  for (const auto& [name, contents] : std::vector<std::pair<std::string, std::string>>{
           {"vocab.json", VocabJson(*bpe)},
           {"merges.txt", MergesText(*bpe)},
           {"tokenizer.json", TokenizerJson(*bpe, split)}}) {
    EXPECT_THAT(WriteFileAtomically(fs, JoinPath(directory, name), contents), IsOk());
  }
  return directory;
}

TEST(TrainedBpeFilesTest, OurTokenizersLoadTheFiles) {
  const std::string text = "The cat sat. The cat's mat, the café's: 12345 猫猫猫\n\n The end";
  for (const std::string name : {"gpt2", "llama3", "qwen2", "o200k"}) {
    const auto split = FindNamedSplitPattern(name);
    ASSERT_THAT(split, IsOk());
    TokenizerOptions options;
    options.type = "HuggingFaceTokenizer";
    options.tokenizer_model = WriteTrained(text, *split);
    const auto tokenizer = CreateTokenizer(options);
    ASSERT_THAT(tokenizer, IsOk());
    EXPECT_EQ((*tokenizer)->eod(), 0);
    std::vector<int32_t> ids;
    ASSERT_THAT((*tokenizer)->Encode(text, &ids), IsOk());
    EXPECT_LT(ids.size(), text.size() * 2 / 3);
    EXPECT_EQ((*tokenizer)->Decode(ids), text);

    if (name != "gpt2") continue;
    options.type = "GPT2BPETokenizer";
    options.vocab_file = JoinPath(options.tokenizer_model, "vocab.json");
    options.merge_file = JoinPath(options.tokenizer_model, "merges.txt");
    options.tokenizer_model.clear();
    const auto gpt2 = CreateTokenizer(options);
    ASSERT_THAT(gpt2, IsOk());
    std::vector<int32_t> gpt2_ids;
    ASSERT_THAT((*gpt2)->Encode(text, &gpt2_ids), IsOk());
    EXPECT_EQ(gpt2_ids, ids);
  }
}

absl::StatusOr<TrainedBpe> TrainOn(absl::string_view text, const BpeTrainerOptions& options) {
  WordCounts words;
  words.AddText(text, FirstPieceOf(FindNamedSplitPattern("tekken")->pattern));
  ThreadPool pool(1);
  return TrainBpe(words, options, &pool, [](int32_t) {});
}

// TikTokenizer gives the three special tokens the same names, so ids are the same too.
TEST(TrainedBpeFilesTest, TheTiktokenFileGivesTheSameTokens) {
  const std::string text =
      "The cat sat. The cat's mat, the café's: 12345 猫猫猫\n\n The end aaaaaaa aaaaaaa aaa abab";
  BpeTrainerOptions training;
  training.special_tokens = {"<unk>", "<s>", "</s>"};
  const auto bpe = TrainOn(text, training);
  ASSERT_THAT(bpe, IsOk());
  const auto tiktoken = TiktokenText(*bpe);
  ASSERT_THAT(tiktoken, IsOk());
  const std::string directory = JoinPath(::testing::TempDir(), "tiktoken");
  FileSystem& fs = PosixFileSystem();
  ASSERT_THAT(fs.CreateDirs(directory), IsOk());
  const std::string ranks = JoinPath(directory, "tokenizer.tiktoken");
  ASSERT_THAT(WriteFileAtomically(fs, ranks, *tiktoken), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs, JoinPath(directory, "tokenizer.json"),
                                  TokenizerJson(*bpe, *FindNamedSplitPattern("tekken"))),
              IsOk());
  TokenizerOptions options;
  options.type = "HuggingFaceTokenizer";
  options.tokenizer_model = directory;
  const auto by_merges = CreateTokenizer(options);
  ASSERT_THAT(by_merges, IsOk());
  options.type = "TikTokenizer";
  options.tokenizer_model = ranks;
  options.tiktoken_num_special_tokens = 3;
  const auto by_ranks = CreateTokenizer(options);
  ASSERT_THAT(by_ranks, IsOk());
  EXPECT_EQ((*by_ranks)->vocab_size(), (*by_merges)->vocab_size());
  for (size_t begin = 0; begin < text.size(); ++begin) {
    const std::string part = text.substr(begin) + text.substr(0, begin / 2);
    std::vector<int32_t> expected, ids;
    ASSERT_THAT((*by_merges)->Encode(part, &expected), IsOk());
    ASSERT_THAT((*by_ranks)->Encode(part, &ids), IsOk());
    EXPECT_EQ(ids, expected) << part;
  }
}

TEST(TrainedBpeFilesTest, VocabulariesThatTiktokenWouldMergeDifferentlyAreRefused) {
  const auto refuses = [](const std::string& why) {
    return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(why));
  };
  EXPECT_THAT(TiktokenText(Bpe()), refuses("not every byte"));
  BpeTrainerOptions options;
  options.special_tokens = {"e"};
  EXPECT_THAT(TiktokenText(*TrainOn("the the", options)), refuses("not every byte"));
  options.special_tokens = {};
  TrainedBpe bpe = *TrainOn("the the", options);
  ASSERT_THAT(TiktokenText(bpe), IsOk());
  // "th" + "e" replaces the trained merge: the same token with other halves.
  ASSERT_EQ(bpe.merges.size(), 2u);
  const int32_t t = 't' - '!', h = 'h' - '!', e = 'e' - '!', merged = 256;
  ASSERT_EQ(bpe.tokens[t], "t");
  bpe.merges = {{t, h}, {merged, e}};
  bpe.tokens[256] = "th";
  bpe.tokens[257] = "the";
  ASSERT_THAT(TiktokenText(bpe), IsOk());
  bpe.merges[1] = {t, e};
  EXPECT_THAT(TiktokenText(bpe), refuses("would not make 't' and 'e' one token"));
}

TEST(TrainedBpeFilesTest, TheErrorForAnUnknownPatternListsTheKnownOnes) {
  EXPECT_THAT(FindNamedSplitPattern("gpt5"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'gpt5'; there are gpt2, llama3, qwen2, o200k, tekken")));
}

}  // namespace
}  // namespace megatron
