#include "megatron/data/tokenizer/tokenizer_factory.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TokenizerFactoryTest, TokenizersAreCreatedByTypeName) {
  for (const char* type : {"ByteLevel", "NullTokenizer"}) {
    const auto tokenizer = CreateTokenizer({type, 500});
    ASSERT_THAT(tokenizer, IsOk());
    EXPECT_EQ((*tokenizer)->name(), type);
  }
}

TEST(TokenizerFactoryTest, TheErrorForAnUnknownTypeListsTheKnownTypes) {
  EXPECT_THAT(CreateTokenizer({"Bytes", 0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("ByteLevel"), HasSubstr("NullTokenizer"))));
}

TEST(TokenizerFactoryTest, ANullTokenizerNeedsAVocabulary) {
  EXPECT_THAT(CreateTokenizer({"NullTokenizer", 0}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CreateTokenizer({"NullTokenizer", int64_t{1} << 31}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(TokenizerFactoryTest, ErrorsNameMissingRequiredFieldsOfEveryType) {
  EXPECT_EQ(TokenizerTypes().size(), 12u);
  for (const absl::string_view type : TokenizerTypes()) {
    const auto fields = TokenizerFieldsOf(type);
    ASSERT_THAT(fields, IsOk());
    if (fields->required.empty()) continue;
    TokenizerOptions options;
    options.type = std::string(type);
    EXPECT_THAT(
        CreateTokenizer(options),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr(options.type), HasSubstr(std::string(fields->required[0])))));
  }
}

TEST(TokenizerFactoryTest, TheErrorNamesAMissingFile) {
  TokenizerOptions options;
  options.vocab_file = options.merge_file = options.tokenizer_model = "no/such/file";
  options.vocab_size = 5;
  for (const absl::string_view type : TokenizerTypes()) {
    if (type == "ByteLevel" || type == "NullTokenizer" || type == "StoryWordPiece") continue;
    options.type = std::string(type);
    EXPECT_THAT(CreateTokenizer(options),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/such/file")))
        << type;
  }
}

class FactoryFilesTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = JoinPath(::testing::TempDir(), name);
    EXPECT_THAT(WriteFileAtomically(PosixFileSystem(), path, text), IsOk());
    return path;
  }
};

TEST_F(FactoryFilesTest, SpecialTokensAreReadFromTheFilesOfADirectory) {
  Write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
      "pre_tokenizer": {"type": "ByteLevel"}})");
  Write("tokenizer_config.json", R"({"eos_token": "b"})");
  TokenizerOptions options;
  options.type = "HuggingFaceTokenizer";
  options.tokenizer_model = ::testing::TempDir();
  const auto tokenizer = CreateTokenizer(options);
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ((*tokenizer)->eod(), 1);
  EXPECT_EQ((*tokenizer)->name(), "HuggingFaceTokenizer");
  Write("tokenizer_config.json", "{");
  EXPECT_THAT(CreateTokenizer(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tokenizer_config.json")));
}

TEST_F(FactoryFilesTest, ErrorsNameInvalidFiles) {
  TokenizerOptions options;
  options.type = "GPT2BPETokenizer";
  options.vocab_file = Write("vocab.json", "{}");
  options.merge_file = Write("merges.txt", "");
  EXPECT_THAT(CreateTokenizer(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("vocab.json"), HasSubstr("<|endoftext|>"))));
  options.type = "TikTokenizer";
  options.tokenizer_model = Write("ranks.tiktoken", "YQ== 0\n");
  options.tiktoken_num_special_tokens = 3;
  for (const char* pattern : {"v1", "v2"}) {
    options.tiktoken_pattern = pattern;
    const auto tokenizer = CreateTokenizer(options);
    ASSERT_THAT(tokenizer, IsOk());
    EXPECT_EQ((*tokenizer)->vocab_size(), 4);
  }
  options.tiktoken_pattern = "v3";
  EXPECT_THAT(CreateTokenizer(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not 'v3'")));
  options.vocab_extra_ids = -1;
  EXPECT_THAT(CreateTokenizer(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("vocab_extra_ids")));
}

}  // namespace
}  // namespace megatron
