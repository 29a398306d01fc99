#include "megatron/data/chat/conversation_dataset.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr int64_t kSeqLength = 64;

class ConversationDatasetTest : public ::testing::Test {
 protected:
  // Conversations of 22 to 31 tokens, with answers "0", "1", ...
  ConversationDatasetTest() {
    const std::string path = absl::StrCat(::testing::TempDir(), "/dataset.jsonl");
    std::string text;
    for (int i = 0; i < 40; ++i) {
      absl::StrAppend(&text, R"({"messages": [{"role": "user", "content": ")",
                      std::string(i % 10, 'x'), R"("}, {"role": "assistant", "content": ")", i,
                      "\"}]}\n");
    }
    EXPECT_THAT(WriteFileAtomically(PosixFileSystem(), path, text), IsOk());
    const auto chat = ChatTemplate::Make("plain", tokenizer_);
    auto read = Conversations::Read(path, *chat, {kSeqLength, false});
    EXPECT_THAT(read, IsOk());
    conversations_ = std::make_shared<const Conversations>(*std::move(read));
    options_.range = {0, 40};
    options_.seq_length = kSeqLength;
    options_.fill_token = tokenizer_.eod();
  }

  std::unique_ptr<ConversationDataset> Create() {
    auto dataset = ConversationDataset::Create(conversations_, options_);
    EXPECT_THAT(dataset, IsOk());
    return *std::move(dataset);
  }
  // Returns the predictions of a sample that count, as text.
  std::string Learned(const Sample& sample) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < sample.labels.size(); ++i) {
      if (sample.loss_mask[i] > 0) tokens.push_back(sample.labels[i]);
    }
    return tokenizer_.Decode(tokens);
  }

  ByteLevelTokenizer tokenizer_;
  std::shared_ptr<const Conversations> conversations_;
  ConversationDatasetOptions options_;
};

TEST_F(ConversationDatasetTest, ConversationsAreDocumentsOfTheirOwn) {
  const auto dataset = Create();
  Sample sample;
  bool has_two = false;
  for (int64_t i = 0; i < dataset->size(); ++i) {
    ASSERT_THAT(dataset->Get(i, &sample), IsOk());
    ASSERT_EQ(sample.tokens.size(), static_cast<size_t>(kSeqLength));
    ASSERT_EQ(sample.document_starts[0], 0);
    for (size_t d = 0; d < sample.document_starts.size(); ++d) {
      const size_t begin = static_cast<size_t>(sample.document_starts[d]);
      const size_t end = d + 1 < sample.document_starts.size()
                             ? static_cast<size_t>(sample.document_starts[d + 1])
                             : static_cast<size_t>(kSeqLength);
      ASSERT_LT(begin, end);
      for (size_t t = begin; t < end; ++t)
        EXPECT_EQ(sample.positions[t], static_cast<int32_t>(t - begin));
      const std::string text =
          tokenizer_.Decode(absl::MakeConstSpan(sample.tokens).subspan(begin, end - begin));
      if (sample.tokens[begin] == tokenizer_.eod()) {
        // What fills the sample up is its last document, and counts nowhere.
        EXPECT_EQ(end, static_cast<size_t>(kSeqLength));
        EXPECT_EQ(std::count(sample.loss_mask.begin() + begin, sample.loss_mask.end(), 0.0f),
                  static_cast<int64_t>(end - begin));
        continue;
      }
      has_two = has_two || d > 0;
      EXPECT_EQ(text.substr(0, 6), "User: ");
      // The inputs have no end of the document; the labels are the tokens behind the inputs.
      EXPECT_EQ(text.find("<|endoftext|>"), text.npos);
      EXPECT_EQ(sample.labels[end - 1], tokenizer_.eod());
      EXPECT_EQ(sample.loss_mask[end - 1], 1.0f);
      for (size_t t = begin; t + 1 < end; ++t) EXPECT_EQ(sample.labels[t], sample.tokens[t + 1]);
      // The answer alone counts: a space, one or two digits and the end.
      const std::string answer = text.substr(text.rfind(':') + 1);
      EXPECT_EQ(std::count(sample.loss_mask.begin() + begin, sample.loss_mask.begin() + end, 1.0f),
                static_cast<int64_t>(answer.size()) + 1);
    }
  }
  EXPECT_TRUE(has_two);
}

TEST_F(ConversationDatasetTest, EachEpochHasEachConversationOnceInAnotherOrder) {
  options_.num_samples = 1;
  const int64_t epoch = Create()->samples_of_epoch();
  EXPECT_EQ(Create()->size(), epoch);
  // Any two conversations fit into a sample.
  EXPECT_LE(epoch, 20);
  options_.num_samples = 3 * epoch;
  const auto dataset = Create();
  ASSERT_EQ(dataset->size(), 3 * epoch);
  std::vector<std::string> orders;
  for (int64_t e = 0; e < 3; ++e) {
    std::string learned;
    Sample sample;
    for (int64_t i = 0; i < epoch; ++i) {
      ASSERT_THAT(dataset->Get(e * epoch + i, &sample), IsOk());
      learned += Learned(sample);
    }
    for (int i = 0; i < 40; ++i) {
      const std::string answer = absl::StrCat(" ", i, "<|endoftext|>");
      const size_t at = learned.find(answer);
      EXPECT_NE(at, learned.npos) << answer;
      EXPECT_EQ(learned.find(answer, at + 1), learned.npos) << answer;
    }
    orders.push_back(learned);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  Sample sample;
  EXPECT_THAT(dataset->Get(3 * epoch, &sample), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST_F(ConversationDatasetTest, TheSeedAloneChoosesTheOrder) {
  Sample a, b;
  ASSERT_THAT(Create()->Get(0, &a), IsOk());
  ASSERT_THAT(Create()->Get(0, &b), IsOk());
  EXPECT_EQ(a.tokens, b.tokens);
  options_.seed = 5;
  ASSERT_THAT(Create()->Get(0, &b), IsOk());
  EXPECT_NE(a.tokens, b.tokens);
}

TEST_F(ConversationDatasetTest, ARangeIsAllThatIsRead) {
  options_.range = {7, 8};
  const auto dataset = Create();
  ASSERT_EQ(dataset->size(), 1);
  Sample sample;
  ASSERT_THAT(dataset->Get(0, &sample), IsOk());
  EXPECT_EQ(Learned(sample), " 7<|endoftext|>");
  options_.range = {7, 7};
  EXPECT_THAT(ConversationDataset::Create(conversations_, options_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no conversation")));
}

}  // namespace
}  // namespace megatron
