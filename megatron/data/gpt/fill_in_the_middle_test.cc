#include "megatron/data/gpt/fill_in_the_middle.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/null_tokenizer.h"

// The functions of Megatron-LM's GPTFIMDataset computed the expected tokens, with a generator
// seeded for each sample. Tokens are numbers spelled as text, so a cut inside of one makes two
// others.
namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

FillInTheMiddleOptions Options() {
  FillInTheMiddleOptions options;
  options.prefix_token = "901";
  options.middle_token = "902";
  options.suffix_token = "903";
  options.pad_token = "904";
  options.eod_token = "999";
  return options;
}

absl::StatusOr<FillInTheMiddle> Create(const FillInTheMiddleOptions& options) {
  return FillInTheMiddle::Create(std::make_shared<NullTokenizer>(1000), options);
}

std::vector<int32_t> Apply(const FillInTheMiddleOptions& options, int64_t index,
                           std::vector<int32_t> tokens) {
  const absl::StatusOr<FillInTheMiddle> fim = Create(options);
  EXPECT_THAT(fim, IsOk());
  EXPECT_THAT(fim->Apply(index, absl::MakeSpan(tokens)),
              IsOkAndHolds(::testing::Le(static_cast<int64_t>(tokens.size()))));
  return tokens;
}

std::vector<int32_t> Counting(int32_t first, size_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(FillInTheMiddleTest, TheMiddleComesAfterTheSuffix) {
  FillInTheMiddleOptions options = Options();
  options.rate = 1;
  const std::vector<int32_t> text = Counting(100, 12);
  EXPECT_THAT(Apply(options, 0, text),
              ElementsAre(901, 903, 9, 110, 111, 902, 100, 101, 102, 103, 104, 105));
  EXPECT_THAT(Apply(options, 1, text),
              ElementsAre(901, 10, 903, 902, 0, 101, 102, 103, 104, 105, 106, 107));
  EXPECT_THAT(Apply(options, 4, text),
              ElementsAre(901, 100, 101, 102, 103, 104, 105, 106, 107, 10, 903, 11));
}

TEST(FillInTheMiddleTest, SegmentsOfDifferentDocumentsAreNotMixed) {
  const std::vector<int32_t> text = {100, 101, 102, 103, 999, 999, 104, 105, 106,
                                     107, 108, 999, 109, 110, 111, 112, 113};
  EXPECT_THAT(Apply(Options(), 0, text), ElementsAre(100, 101, 102, 103, 999, 901, 903, 108, 902,
                                                     104, 105, 106, 107, 999, 109, 110, 111));
  EXPECT_THAT(Apply(Options(), 1, text), ElementsAre(901, 10, 903, 902, 0, 101, 102, 103, 999, 901,
                                                     104, 105, 903, 108, 902, 106, 107));
  EXPECT_THAT(Apply(Options(), 2, text), ElementsAre(100, 101, 102, 103, 999, 104, 105, 106, 107,
                                                     108, 999, 901, 1, 903, 113, 902, 9));
}

TEST(FillInTheMiddleTest, FragmentsBetweenSplitTokensAreChosenIndependently) {
  FillInTheMiddleOptions options = Options();
  options.split_token = "500";
  options.rate = 0.9;
  options.fragment_rate = 0.7;
  const std::vector<int32_t> text = {100, 101, 500, 102, 103, 104, 500, 105,
                                     999, 106, 107, 108, 500, 500, 109, 110};
  EXPECT_EQ(Apply(options, 1, text), text);
  EXPECT_THAT(Apply(options, 2, text),
              ElementsAre(901, 903, 0, 101, 902, 1, 500, 901, 1, 903, 103, 104, 902, 2, 500, 901));
  EXPECT_THAT(Apply(options, 6, text),
              ElementsAre(901, 903, 902, 100, 1, 1, 500, 102, 103, 104, 500, 901, 903, 5, 902, 10));
}

TEST(FillInTheMiddleTest, TextThatBeginsWithNoPrefixIsUnchanged) {
  FillInTheMiddleOptions options = Options();
  options.rate = 1;
  options.no_prefix = "100 1";
  EXPECT_EQ(Apply(options, 0, Counting(100, 12)), Counting(100, 12));
  EXPECT_NE(Apply(options, 0, Counting(200, 12)), Counting(200, 12));
}

TEST(FillInTheMiddleTest, MissingTokensArePaddingAndNotCounted) {
  FillInTheMiddleOptions options = Options();
  options.rate = 1;
  const absl::StatusOr<FillInTheMiddle> fim = Create(options);
  ASSERT_THAT(fim, IsOk());
  std::vector<int32_t> tokens(6, 999);
  EXPECT_THAT(fim->Apply(0, absl::MakeSpan(tokens)), IsOkAndHolds(3));
  EXPECT_THAT(tokens, ElementsAre(901, 903, 902, 904, 904, 904));
}

TEST(FillInTheMiddleTest, ReadingASampleAgainGivesTheSameTokens) {
  const absl::StatusOr<FillInTheMiddle> fim = Create(Options());
  ASSERT_THAT(fim, IsOk());
  std::vector<int32_t> first = Counting(100, 50), other = first, again = first;
  ASSERT_THAT(fim->Apply(1000000000000, absl::MakeSpan(first)), IsOk());
  ASSERT_THAT(fim->Apply(3, absl::MakeSpan(other)), IsOk());
  ASSERT_THAT(fim->Apply(1000000000000, absl::MakeSpan(again)), IsOk());
  EXPECT_EQ(first, again);
}

// A tokenizer whose tokens are bytes, so that a cut inside a character would show. Numbers that
// begin with 9 are special.
class Bytes : public NullTokenizer {
 public:
  Bytes() : NullTokenizer(1000) {}
  std::string Decode(absl::Span<const int32_t> ids) const override {
    return std::string(ids.begin(), ids.end());
  }

 private:
  absl::Status DoEncode(absl::string_view text, const EncodeOptions& options,
                        std::vector<int32_t>* ids) const override {
    if (options.parse_special && absl::StartsWith(text, "9")) {
      ids->push_back(std::stoi(std::string(text)));
    } else {
      for (const char c : text) ids->push_back(static_cast<uint8_t>(c));
    }
    return absl::OkStatus();
  }
};

TEST(FillInTheMiddleTest, CutsAreBetweenCharacters) {
  FillInTheMiddleOptions options = Options();
  options.rate = 1;
  const auto fim = FillInTheMiddle::Create(std::make_shared<Bytes>(), options);
  ASSERT_THAT(fim, IsOk());
  const std::vector<int32_t> snowman = {0xe2, 0x98, 0x83};
  for (int64_t index = 0; index < 50; ++index) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 4; ++i) tokens.insert(tokens.end(), snowman.begin(), snowman.end());
    ASSERT_THAT(fim->Apply(index, absl::MakeSpan(tokens)), IsOk());
    for (size_t i = 1; i < tokens.size(); ++i) {
      if (tokens[i] == 0x98 || tokens[i] == 0x83) {
        ASSERT_EQ(tokens[i - 1], tokens[i] == 0x98 ? 0xe2 : 0x98);
      }
    }
  }
}

TEST(FillInTheMiddleTest, OptionsOutOfRangeAreErrors) {
  FillInTheMiddleOptions options = Options();
  options.rate = 1.5;
  EXPECT_THAT(Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fim_rate 1.5")));
  options = Options();
  options.middle_token = "1 2";
  EXPECT_THAT(Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'1 2' is 2 tokens")));
}

}  // namespace
}  // namespace megatron
