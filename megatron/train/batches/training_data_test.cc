#include "megatron/train/batches/training_data.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/indexed/indexed_dataset_writer.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/train/batches/phase_samples.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class TrainingDataTest : public ::testing::Test {
 protected:
  TrainingDataTest() {
    TokenizerOptions tokenizer;
    tokenizer.type = "NullTokenizer";
    tokenizer.vocab_size = 1000;
    tokenizer_ = *CreateTokenizer(tokenizer);
    options_.split = "8,2";
    options_.seq_length = 8;
    options_.run = {/*train_iters=*/10, /*global_batch_size=*/4, /*eval_interval=*/5,
                    /*eval_iters=*/1};
  }

  // Documents of 20 tokens that are all `token`.
  std::string Write(const std::string& name, int32_t token, int documents) {
    const std::string prefix = absl::StrCat(::testing::TempDir(), "/", name);
    auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), prefix, TokenType::kU16);
    EXPECT_THAT(writer, IsOk());
    for (int d = 0; d < documents; ++d) {
      EXPECT_THAT((*writer)->AddDocument(std::vector<int32_t>(20, token)), IsOk());
    }
    EXPECT_THAT((*writer)->Finalize(), IsOk());
    return prefix;
  }

  absl::StatusOr<TrainingData> Open() { return OpenTrainingData(options_, *tokenizer_); }

  // Counts the samples that begin with each token.
  static std::map<int32_t, int> Count(const SampleSource& source, int64_t samples) {
    std::map<int32_t, int> counts;
    Sample sample;
    for (int64_t i = 0; i < samples; ++i) {
      EXPECT_THAT(source.Get(i, &sample), IsOk());
      ++counts[sample.tokens[0]];
    }
    return counts;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  DataOptions options_;
};

TEST_F(TrainingDataTest, OneFileIsSplitForTrainingAndValidation) {
  options_.data_path = {Write("one", 5, 50) + ".idx"};
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(data->description, HasSubstr("50 documents, 1000 tokens"));
  EXPECT_GE(data->train->size(), 40);
  EXPECT_GE(data->valid[0].samples->size(), 12);
}

TEST_F(TrainingDataTest, TheThirdSplitShareIsTheTestSetIfEveryFileHasOne) {
  options_.split = "6,2,2";
  const std::string one = Write("one", 5, 50);
  options_.data_path = {one};
  auto data = Open();
  ASSERT_THAT(data, IsOk());
  ASSERT_NE(data->test, nullptr);
  EXPECT_EQ(Count(*data->test, 12), (std::map<int32_t, int>{{5, 12}}));
  options_.data_path = {"0.5", one, "0.5", Write("two_documents", 6, 2)};
  options_.split = "5,4,1";
  data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(data->test, nullptr);
  options_.data_path = {one};
  options_.run.eval_interval = 0;
  data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(data->test, nullptr);
}

TEST_F(TrainingDataTest, FilesAreMixedByWeight) {
  options_.data_path = {"0.25", Write("few", 1, 50), "0.75", Write("many", 2, 50)};
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(Count(*data->train, 40), (std::map<int32_t, int>{{1, 10}, {2, 30}}));
}

TEST_F(TrainingDataTest, AlphaMakesWeightsOfTokens) {
  options_.data_path = {Write("few", 1, 20), Write("many", 2, 180)};
  options_.split = "1";
  options_.run.eval_interval = 0;
  const auto counts = [&](double alpha) {
    options_.sampling_alpha = alpha;
    const auto data = Open();
    EXPECT_THAT(data, IsOk());
    return Count(*data->train, 40);
  };
  EXPECT_EQ(counts(1), (std::map<int32_t, int>{{1, 4}, {2, 36}}));
  EXPECT_EQ(counts(0.5), (std::map<int32_t, int>{{1, 10}, {2, 30}}));
  EXPECT_EQ(counts(0), (std::map<int32_t, int>{{1, 20}, {2, 20}}));
  const std::string fingerprint = Open()->fingerprint;
  options_.sampling_alpha = 0.25;
  EXPECT_NE(Open()->fingerprint, fingerprint);
  options_.data_path = {"1", options_.data_path[0], "2", options_.data_path[1]};
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("data.data_path: has weights"),
                                     HasSubstr("data.sampling_alpha"))));
}

TEST_F(TrainingDataTest, LossWeightsAreThoseOfTrainingFiles) {
  options_.train_data_path = {"0.5", Write("few", 1, 20), "0.5", Write("many", 2, 20)};
  options_.valid_data_path = {Write("held", 1, 20)};
  options_.loss_weights = {0.5, 3};
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  Sample sample;
  for (int64_t i = 0; i < 10; ++i) {
    ASSERT_THAT(data->train->Get(i, &sample), IsOk());
    for (size_t t = 0; t < sample.tokens.size(); ++t) {
      if (sample.loss_mask[t] == 0) continue;
      EXPECT_EQ(sample.loss_mask[t], sample.tokens[0] == 1 ? 0.5f : 3.0f);
    }
  }
  ASSERT_THAT(data->valid[0].samples->Get(0, &sample), IsOk());
  EXPECT_THAT(sample.loss_mask, ::testing::Each(1.0f));
  const std::string fingerprint = data->fingerprint;
  options_.loss_weights = {0.5, 2};
  EXPECT_NE(Open()->fingerprint, fingerprint);
  options_.loss_weights = {1};
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("data.loss_weights has 1 number for 2 training files")));
}

// Fails unless each sample's source is the file whose tokens it has: token t is file t - 1.
void ExpectSourcesOfTokens(const SampleSource& samples, int64_t count) {
  std::set<int> seen;
  Sample sample;
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_THAT(samples.Get(i, &sample), IsOk());
    EXPECT_EQ(samples.SourceOf(i), sample.tokens[0] - 1) << i;
    seen.insert(samples.SourceOf(i));
  }
  EXPECT_EQ(seen, (std::set<int>{0, 1, 2}));
}

TEST_F(TrainingDataTest, SamplesTellTheirFileInAnyOrder) {
  options_.train_data_path = {"0.2", Write("first", 1, 60), "0.5", Write("second", 2, 60),
                              "0.3", Write("third", 3, 60)};
  options_.run.eval_interval = 0;
  ExpectSourcesOfTokens(*Open()->train, 40);
  options_.loss_weights = {1, 0.5, 2};
  ExpectSourcesOfTokens(*Open()->train, 40);
  const auto data = Open();
  const PhaseSamples later(data->train.get(), /*taken_before=*/8);
  EXPECT_EQ(later.size(), 8 + data->train->size());
  EXPECT_EQ(later.SourceOf(3), 0);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(later.SourceOf(8 + i), data->train->SourceOf(i)) << i;
  options_.cyclic = true;
  ExpectSourcesOfTokens(*Open()->train, 90);  // more than an epoch
  options_.cyclic = false;
  options_.run.training_runs = 3;
  for (options_.training_run = 0; options_.training_run < 3; ++options_.training_run)
    ExpectSourcesOfTokens(*Open()->train, 12);
}

TEST_F(TrainingDataTest, OneFileIsOneSource) {
  options_.data_path = {Write("one", 1, 60)};
  const auto data = Open();
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(data->train->SourceOf(i), 0);
}

TEST(SourceNamesTest, TrainingFilesAreCalledAsValidationSetsAre) {
  DataOptions options;
  options.data_path = {"0.5", "/data/de/text.bin", "0.25", "/data/fr/text.idx", "0.25", "books"};
  EXPECT_THAT(SourceNames(options), ElementsAre("/data/de/text", "/data/fr/text", "books"));
  options.train_data_path = {"/data/news", "/data/books"};
  EXPECT_THAT(SourceNames(options), ElementsAre("news", "books"));
  // A file that is given twice is one source, of both of its numbers.
  options.train_data_path = {"0.5", "/data/news", "0.3", "/data/books", "0.2", "/data/news"};
  EXPECT_THAT(SourceNames(options), ElementsAre("news", "books", "news"));
  options.task = TaskDataOptions{LabelledTask::kTextToText};
  options.train_data_path = {"copy.jsonl", "data.bin"};
  EXPECT_THAT(SourceNames(options), ElementsAre("copy.jsonl", "data.bin"));
  options.train_data_path = {"a\nb",
                             "c\xff"
                             "d"};  // metrics are lines of UTF-8
  EXPECT_THAT(SourceNames(options), ElementsAre("a_b",
                                                "c\xef\xbf\xbd"
                                                "d"));
}

TEST(SourceNamesTest, OneFileHasNoLossOfItsOwn) {
  DataOptions options;
  EXPECT_THAT(SourceNames(options), IsEmpty());
  options.data_path = {"a"};
  EXPECT_THAT(SourceNames(options), IsEmpty());
  options.data_path = {"0.5", "a", "0.5", "a"};
  EXPECT_THAT(SourceNames(options), IsEmpty());
  options.data_path = {"0.5", "a", "b", "c"};  // refused when it is opened
  EXPECT_THAT(SourceNames(options), IsEmpty());
  options.data_path.clear();
  for (size_t i = 0; i < kMostSources; ++i) options.data_path.push_back(absl::StrCat("f", i));
  EXPECT_EQ(SourceNames(options).size(), kMostSources);
  options.data_path.push_back("one more");
  EXPECT_THAT(SourceNames(options), IsEmpty());
  options.data_path = {"a", "b", "c"};
  EXPECT_EQ(SourceNames(options).size(), 3u);
  options.mock = true;
  EXPECT_THAT(SourceNames(options), IsEmpty());
}

TEST_F(TrainingDataTest, TooManyFilesAreSaidToHaveNoLossesOfTheirOwn) {
  options_.split = "1";
  options_.run.eval_interval = 0;
  const std::string one = Write("one", 1, 2);
  options_.data_path.assign(kMostSources, one);
  EXPECT_THAT(Open()->description, Not(HasSubstr("without losses by file")));
  options_.data_path.push_back(one);
  EXPECT_THAT(Open()->description, HasSubstr("without losses by file"));
}

TEST_F(TrainingDataTest, AlphaNeedsSeveralFiles) {
  options_.data_path = {Write("few", 1, 20)};
  options_.sampling_alpha = 0.3;
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("data.sampling_alpha: has no effect on one")));
}

TEST_F(TrainingDataTest, ExamplesOfATaskAreSplitAndBlended) {
  tokenizer_ = *CreateTokenizer({"StoryWordPiece"});
  options_.task = TaskDataOptions{LabelledTask::kQqp};
  options_.seq_length = 16;
  std::string text = "header\n";
  for (int i = 0; i < 50; ++i) absl::StrAppend(&text, i, "\t1\t2\ttom was sad\tana\t1\n");
  const std::string path = absl::StrCat(::testing::TempDir(), "/qqp.tsv");
  ASSERT_THAT(WriteFileAtomically(PosixFileSystem(), path, text), IsOk());
  options_.data_path = {path};
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(data->description, HasSubstr("qqp.tsv, 50 examples, 200 tokens"));
  Sample sample;
  ASSERT_THAT(data->train->Get(0, &sample), IsOk());
  EXPECT_EQ(sample.sequence_class, 1);
  EXPECT_EQ(sample.tokens.size(), 7u);
  EXPECT_GE(EstimateDataBytes(options_), 200 * 4);
  options_.data_path = {"0.5", path, "0.5", path};
  EXPECT_THAT(Open(), IsOk());
}

// Conversations of 22 tokens in "plain" form, two of which fit into a sample.
class ConversationDataTest : public TrainingDataTest {
 protected:
  ConversationDataTest() {
    tokenizer_ = *CreateTokenizer({"ByteLevel"});
    options_.seq_length = 42;
    options_.conversations = ConversationDataOptions{"plain", false};
  }

  std::string WriteChat(const std::string& name, char answer, int conversations) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
    std::string text;
    for (int i = 0; i < conversations; ++i) {
      absl::StrAppend(&text,
                      R"({"messages": [{"role": "user", "content": "Hi"}, )"
                      R"({"role": "assistant", "content": ")",
                      std::string(1, answer), "\"}]}\n");
    }
    EXPECT_THAT(WriteFileAtomically(PosixFileSystem(), path, text), IsOk());
    return path;
  }

  // Counts the tokens that are learned.
  static std::map<int32_t, int> Learned(const SampleSource& source, int64_t samples) {
    std::map<int32_t, int> counts;
    Sample sample;
    for (int64_t i = 0; i < samples; ++i) {
      EXPECT_THAT(source.Get(i, &sample), IsOk());
      for (size_t t = 0; t < sample.labels.size(); ++t) {
        if (sample.loss_mask[t] > 0) ++counts[sample.labels[t]];
      }
    }
    return counts;
  }
};

TEST_F(ConversationDataTest, AFileIsSplitForTrainingAndValidation) {
  options_.data_path = {WriteChat("chat.jsonl", 'x', 50)};
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(data->description,
              HasSubstr("chat.jsonl, 50 conversations, 1100 tokens, 150 of them in answers"));
  EXPECT_GE(data->train->size(), 40);
  EXPECT_GE(data->valid[0].samples->size(), 12);
  // The first 20 samples are an epoch of 40 conversations.
  EXPECT_EQ(Learned(*data->train, 20), (std::map<int32_t, int>{{' ', 40}, {'x', 40}, {256, 40}}));
  EXPECT_GT(EstimateDataBytes(options_), 1100 * 4);
  const std::string fingerprint = data->fingerprint;
  options_.data_path = {WriteChat("chat.jsonl", 'y', 50)};
  EXPECT_NE(Open()->fingerprint, fingerprint);
}

TEST_F(ConversationDataTest, FilesAreMixedAndEvaluatedApart) {
  options_.train_data_path = {"0.25", WriteChat("x.jsonl", 'x', 10), "0.75",
                              WriteChat("y.jsonl", 'y', 10)};
  options_.valid_data_path = {options_.train_data_path[1], options_.train_data_path[3]};
  options_.multiple_validation_sets = options_.full_validation = true;
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(Learned(*data->train, 40),
            (std::map<int32_t, int>{{' ', 80}, {'x', 20}, {'y', 60}, {256, 80}}));
  ASSERT_EQ(data->valid.size(), 2u);
  EXPECT_EQ(data->valid[0].name, "x.jsonl");
  // Five samples, filled up to whole batches of four.
  ASSERT_EQ(data->valid[1].samples->size(), 8);
  EXPECT_EQ(Learned(*data->valid[1].samples, 8),
            (std::map<int32_t, int>{{' ', 10}, {'y', 10}, {256, 10}}));
}

TEST_F(ConversationDataTest, WhatCannotBeReadIsRefused) {
  options_.data_path = {Write("tokens", 1, 5) + ".bin"};
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss,
                               AllOf(HasSubstr("data.data_path: "), HasSubstr("line 1: "))));
  options_.data_path = {"/nowhere.jsonl"};
  EXPECT_THAT(Open().status().message(), HasSubstr("/nowhere.jsonl"));
  options_.split = "99,1,0";
  options_.data_path = {WriteChat("few.jsonl", 'x', 8)};
  EXPECT_THAT(Open().status().message(),
              AllOf(HasSubstr("few.jsonl has 8 conversations, too few for a \"valid\" part: give"),
                    HasSubstr("data.split = 99,1,0")));
  options_.conversations->chat_template = "chatml";
  EXPECT_THAT(Open().status().message(),
              AllOf(HasSubstr("<|im_start|>"), HasSubstr("data.sft_tokenizer_prompt_format")));
}

TEST_F(TrainingDataTest, FilesWithoutWeightsAreReadOnce) {
  options_.data_path = {Write("a", 1, 50), Write("b", 2, 150)};
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  const std::map<int32_t, int> counts = Count(*data->train, 40);
  EXPECT_NEAR(counts.at(1), 10, 1);
  options_.run.train_iters = 1000;
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("with weights files are read more than once")));
}

// The shares of 14 and 27 samples, as doubles and rounded up, are 42 samples.
TEST_F(TrainingDataTest, FilesWithoutWeightsCanBeReadToTheLastSample) {
  options_.train_data_path = {Write("a", 1, 6), Write("b", 2, 11)};
  options_.run = {/*train_iters=*/41, /*global_batch_size=*/1, /*eval_interval=*/0,
                  /*eval_iters=*/0};
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(data->train->size(), 41);
  EXPECT_EQ(Count(*data->train, 41), (std::map<int32_t, int>{{1, 14}, {2, 27}}));
}

TEST_F(TrainingDataTest, TheFingerprintFollowsContentsAndWeightsButNotNames) {
  const std::string a = Write("a", 1, 50), b = Write("b", 2, 50);
  auto fingerprint = [&](const std::vector<std::string>& path) {
    options_.data_path = path;
    const auto data = Open();
    EXPECT_THAT(data, IsOk());
    return data->fingerprint;
  };
  const std::string one = fingerprint({a});
  EXPECT_EQ(fingerprint({a + ".bin"}), one);
  EXPECT_EQ(fingerprint({Write("copy", 1, 50)}), one);
  EXPECT_NE(fingerprint({b}), one);
  EXPECT_NE(fingerprint({"0.3", a, "0.7", b}), fingerprint({"0.7", a, "0.3", b}));
  // These weights are normalized twice: the order follows from the second result.
  EXPECT_THAT(fingerprint({"0.7", a, "0.2", b, "0.1", a}),
              AllOf(HasSubstr("weight 0.19999999999999998"), Not(HasSubstr("weight 0.70000"))));
}

TEST_F(TrainingDataTest, GivenWeightsAreNormalizedTwiceAsInMegatron) {
  options_.data_path = {"0.7", Write("a", 1, 50), "0.2", Write("b", 2, 50),
                        "0.1", Write("c", 3, 50)};
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  Sample sample;
  for (const auto& [index, token] :
       std::vector<std::pair<int, int32_t>>{{3, 3}, {4, 1}, {5, 1}, {6, 2}, {7, 1}}) {
    ASSERT_THAT(data->train->Get(index, &sample), IsOk());
    EXPECT_EQ(sample.tokens[0], token) << index;
  }
}

TEST_F(TrainingDataTest, PartsWithFilesOfTheirOwnTakeAllOfThem) {
  options_.train_data_path = {"0.5", Write("train", 1, 5), "0.5", Write("more", 2, 5)};
  options_.valid_data_path = {Write("valid", 3, 5)};
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(Count(*data->train, 40), (std::map<int32_t, int>{{1, 20}, {2, 20}}));
  EXPECT_EQ(Count(*data->valid[0].samples, 12), (std::map<int32_t, int>{{3, 12}}));
  EXPECT_THAT(data->description, HasSubstr("; validation on "));
  options_.valid_data_path = {"0.5", Write("valid", 3, 5)};
  EXPECT_EQ(Open()->fingerprint, data->fingerprint + ", weight 1");
  options_.valid_data_path = {Write("valid", 4, 5)};
  EXPECT_NE(Open()->fingerprint, data->fingerprint);
}

std::vector<std::vector<int32_t>> Tokens(const SampleSource& source, int64_t samples) {
  std::vector<std::vector<int32_t>> tokens;
  Sample sample;
  for (int64_t i = 0; i < samples; ++i) {
    EXPECT_THAT(source.Get(i, &sample), IsOk());
    tokens.push_back(sample.tokens);
  }
  return tokens;
}

// Four epochs of five documents have 49 samples. A blend asks for half a percent more, and a fifth
// epoch gives another order.
TEST_F(TrainingDataTest, AFileThatIsAloneInItsPartIsNoBlend) {
  const std::string prefix = absl::StrCat(::testing::TempDir(), "/alone");
  auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), prefix, TokenType::kU16);
  ASSERT_THAT(writer, IsOk());
  for (int32_t token = 1; token <= 5; ++token)
    ASSERT_THAT((*writer)->AddDocument(std::vector<int32_t>(20, token)), IsOk());
  ASSERT_THAT((*writer)->Finalize(), IsOk());
  options_.run = {/*train_iters=*/49, /*global_batch_size=*/1, /*eval_interval=*/0,
                  /*eval_iters=*/0};
  options_.train_data_path = {prefix};
  const auto bare = Open();
  ASSERT_THAT(bare, IsOk());
  options_.train_data_path = {"1.0", prefix};
  const auto weighted = Open();
  ASSERT_THAT(weighted, IsOk());
  EXPECT_EQ(Tokens(*weighted->train, 49), Tokens(*bare->train, 49));
  EXPECT_EQ(weighted->fingerprint, bare->fingerprint);
  options_.data_path = options_.train_data_path;
  options_.train_data_path = {};
  options_.split = "1";
  const auto blend = Open();
  ASSERT_THAT(blend, IsOk());
  EXPECT_NE(Tokens(*blend->train, 49), Tokens(*bare->train, 49));
}

TEST_F(TrainingDataTest, EachValidationSetIsCalledAfterItsFile) {
  options_.multiple_validation_sets = true;
  options_.train_data_path = {Write("sets_train", 1, 5)};
  const std::string news = Write("news", 3, 5), books = Write("books", 4, 9);
  options_.valid_data_path = {news, books + ".idx"};
  auto data = Open();
  ASSERT_THAT(data, IsOk());
  ASSERT_EQ(data->valid.size(), 2);
  EXPECT_EQ(data->valid[0].name, "news");
  EXPECT_EQ(data->valid[1].name, "books");
  EXPECT_EQ(Count(*data->valid[0].samples, 12), (std::map<int32_t, int>{{3, 12}}));
  EXPECT_EQ(Count(*data->valid[1].samples, 12), (std::map<int32_t, int>{{4, 12}}));
  options_.validation_set_names = {"German", "French"};
  data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(data->valid[0].name, "German");
  EXPECT_EQ(data->valid[1].name, "French");
  options_.validation_set_names = {"German"};
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("train.validation_set_names: has 1 name for 2 files")));
  options_.validation_set_names.clear();
  // A set of a file alone reads what the file alone gives.
  options_.multiple_validation_sets = false;
  options_.valid_data_path = {news};
  EXPECT_EQ(Tokens(*Open()->valid[0].samples, 12), Tokens(*data->valid[0].samples, 12));

  options_.multiple_validation_sets = true;
  ASSERT_THAT(PosixFileSystem().CreateDirs(::testing::TempDir() + "/other"), IsOk());
  const std::string other_news = Write("other/news", 5, 5);
  options_.valid_data_path = {news, books, other_news};
  data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(data->valid[0].name, news);
  EXPECT_EQ(data->valid[1].name, "books");
  EXPECT_EQ(data->valid[2].name, other_news);
  for (const auto& [paths, error] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"0.5", news, "0.5", books}, "data.valid_data_path: has weights, and with train."},
           {{news, books, news}, "data.valid_data_path: names news twice"},
           {{news, books, Write("ppl", 1, 5)}, "rename the file"}}) {
    options_.valid_data_path = paths;
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error)));
  }
}

TEST_F(TrainingDataTest, ValidationSetsHaveNamesThatMetricsCanHave) {
  options_.multiple_validation_sets = true;
  options_.train_data_path = {Write("named_train", 1, 5)};
  options_.valid_data_path = {Write("fran\xe7ois", 3, 5), Write("two\nlines", 4, 5)};
  auto data = Open();
  ASSERT_THAT(data, IsOk());
  ASSERT_EQ(data->valid.size(), 2);
  EXPECT_EQ(data->valid[0].name, "fran\xef\xbf\xbdois");
  EXPECT_EQ(data->valid[1].name, "two_lines");
  // What becomes alike is refused like what is.
  options_.valid_data_path = {options_.valid_data_path[0], Write("fran\xe8ois", 3, 5)};
  EXPECT_THAT(Open(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fran\xef\xbf\xbdois twice")));
}

// A document has 20 tokens, so five of them have 12 samples of 8 tokens and their next one.
TEST_F(TrainingDataTest, FullValidationReadsEachSampleOnce) {
  options_.full_validation = true;
  options_.train_data_path = {Write("full_train", 1, 5)};
  const std::string one = Write("full_one", 3, 5), two = Write("full_two", 4, 10);
  options_.valid_data_path = {one, two};
  auto counts = [](const SampleSource& source) {
    std::map<int32_t, int> counts;
    Sample sample;
    for (int64_t i = 0; i < source.size(); ++i) {
      EXPECT_THAT(source.Get(i, &sample), IsOk());
      if (sample.loss_mask[0] > 0) ++counts[sample.tokens[0]];
    }
    return counts;
  };
  auto data = Open();
  ASSERT_THAT(data, IsOk());
  ASSERT_EQ(data->valid.size(), 1);
  EXPECT_EQ(counts(*data->valid[0].samples), (std::map<int32_t, int>{{3, 12}, {4, 24}}));
  EXPECT_EQ(data->valid[0].samples->size() % options_.run.global_batch_size, 0);
  // Neither the run's length nor the order of training has an influence.
  options_.run.train_iters = 1000;
  options_.run.global_batch_size = 5;
  options_.cyclic = true;
  options_.multiple_validation_sets = true;
  data = Open();
  ASSERT_THAT(data, IsOk());
  ASSERT_EQ(data->valid.size(), 2);
  EXPECT_EQ(counts(*data->valid[0].samples), (std::map<int32_t, int>{{3, 12}}));
  EXPECT_EQ(data->valid[0].samples->size(), 15);
  options_.multiple_validation_sets = false;
  options_.valid_data_path = {"0.5", one, "0.5", two};
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("train.full_validation reads each sample once")));
  // A share of the same files, and stories.
  options_.train_data_path = options_.valid_data_path = {};
  options_.data_path = {Write("full_split", 6, 50)};
  data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(counts(*data->valid[0].samples), (std::map<int32_t, int>{{6, 24}}));
}

TEST_F(TrainingDataTest, DataPathMayBeInAFile) {
  const std::string few = Write("few", 1, 50), many = Write("many", 2, 50);
  options_.data_path = {"0.25", few, "0.75", many};
  const auto expected = Open();
  ASSERT_THAT(expected, IsOk());
  options_.data_path = {};
  options_.data_args_path = ::testing::TempDir() + "/data_args.txt";
  const auto read = [&](const std::string& text) {
    EXPECT_THAT(WriteFileAtomically(PosixFileSystem(), options_.data_args_path, text), IsOk());
    return ReadDataArgs(PosixFileSystem(), &options_);
  };
  ASSERT_THAT(read(absl::StrCat("0.25 ", few, "\n0.75\t", many, "\r\n")), IsOk());
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(data->fingerprint, expected->fingerprint);
  EXPECT_EQ(Tokens(*data->train, 40), Tokens(*expected->train, 40));
  EXPECT_THAT(read(" \n"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names no data")));
  ASSERT_THAT(read("missing"), IsOk());
  EXPECT_THAT(std::string(Open().status().message()), StartsWith("data.data_args_path: "));
  options_.data_args_path = "/there is no such file";
  EXPECT_THAT(ReadDataArgs(PosixFileSystem(), &options_).message(),
              HasSubstr("for data.data_args_path"));
}

TEST_F(TrainingDataTest, AFileThatIsNotThereIsNamedWithItsField) {
  const auto error = [this] { return std::string(Open().status().message()); };
  options_.data_path = {"missing"};
  EXPECT_THAT(error(), AllOf(StartsWith("data.data_path: "), HasSubstr("missing")));
  options_.data_path = {};
  options_.train_data_path = {Write("there", 1, 5)};
  options_.valid_data_path = {"missing"};
  EXPECT_THAT(error(), AllOf(StartsWith("data.valid_data_path: "), HasSubstr("missing")));
  options_.per_split_data_args_path = "list.json";
  EXPECT_THAT(error(), StartsWith("data.per_split_data_args_path: valid: "));
}

TEST_F(TrainingDataTest, ACacheAndWaysToReadChangeNoSample) {
  options_.data_path = {"0.25", Write("few", 1, 50), "0.75", Write("many", 2, 50)};
  const auto expected = Open();
  ASSERT_THAT(expected, IsOk());
  options_.cache_path = ::testing::TempDir() + "/gpt_data_cache";
  for (const bool mmap_bin_files : {true, false, true}) {
    options_.mmap_bin_files = mmap_bin_files;
    const auto data = Open();
    ASSERT_THAT(data, IsOk());
    EXPECT_EQ(Tokens(*data->train, 40), Tokens(*expected->train, 40));
    EXPECT_EQ(Tokens(*data->valid[0].samples, 12), Tokens(*expected->valid[0].samples, 12));
    EXPECT_EQ(data->fingerprint, expected->fingerprint);
  }
  // The files are: three arrays, a description and checksums for each of two datasets and two
  // parts, the two arrays of each blend with its description and checksums, and the lock.
  EXPECT_EQ(PosixFileSystem().List(options_.cache_path)->size(), 5u * 4 + 4u * 2 + 1);
}

// The test vector of gpt_index_test: documents of these lengths, 12 samples of 4 tokens, seed 1234.
TEST_F(TrainingDataTest, EachPartDrawsFromItsFilesAsMegatronDoes) {
  const std::vector<int> lengths = {5, 3, 7, 4, 6, 2, 9, 1};
  const std::vector<int> documents = {2, 1, 6, 0, 4, 5, 3, 7, 5, 0, 3, 4, 2, 6, 1, 7};
  const std::vector<int> shuffle = {7, 3, 5, 1, 4, 8, 0, 2, 6, 16, 13, 10, 14, 12, 9, 11, 17, 15};
  const auto write = [&](const std::string& name, int32_t first) {
    const std::string prefix = absl::StrCat(::testing::TempDir(), "/", name);
    auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), prefix, TokenType::kU16);
    EXPECT_THAT(writer, IsOk());
    for (size_t d = 0; d < lengths.size(); ++d) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < lengths[d]; ++i)
        tokens.push_back(first + static_cast<int32_t>(d) * 10 + i);
      EXPECT_THAT((*writer)->AddDocument(tokens), IsOk());
    }
    EXPECT_THAT((*writer)->Finalize(), IsOk());
    return prefix;
  };
  const auto expect = [&](const SampleSource& source, int32_t first) {
    std::vector<int32_t> stream;
    for (const int d : documents) {
      for (int i = 0; i < lengths[static_cast<size_t>(d)]; ++i)
        stream.push_back(first + d * 10 + i);
    }
    ASSERT_EQ(source.size(), static_cast<int64_t>(shuffle.size()));
    Sample sample;
    for (size_t i = 0; i < shuffle.size(); ++i) {
      ASSERT_THAT(source.Get(static_cast<int64_t>(i), &sample), IsOk());
      const auto begin = stream.begin() + shuffle[i] * 4;
      EXPECT_EQ(sample.tokens, std::vector<int32_t>(begin, begin + 4)) << i;
      EXPECT_EQ(sample.labels, std::vector<int32_t>(begin + 1, begin + 5)) << i;
    }
  };
  options_.seq_length = 4;
  // There are 12 samples of each part.
  options_.run = {/*train_iters=*/4, /*global_batch_size=*/3, /*eval_interval=*/5,
                  /*eval_iters=*/4};
  options_.train_data_path = {write("own_train", 0)};
  options_.valid_data_path = {write("own_valid", 100)};
  options_.test_data_path = {write("own_test", 200)};
  const auto data = Open();
  ASSERT_THAT(data, IsOk());
  expect(*data->train, 0);
  expect(*data->valid[0].samples, 100);
  expect(*data->test, 200);
  EXPECT_THAT(data->description, HasSubstr("; test on "));

  // The same data are read from a list in a file.
  DataOptions listed = options_;
  listed.train_data_path = listed.valid_data_path = listed.test_data_path = {};
  listed.per_split_data_args_path = ::testing::TempDir() + "/per_split.json";
  const auto list = [&](const std::string& text) {
    EXPECT_THAT(WriteFileAtomically(PosixFileSystem(), listed.per_split_data_args_path, text),
                IsOk());
    return ReadPerSplitDataArgs(PosixFileSystem(), &listed);
  };
  ASSERT_THAT(list(absl::StrCat("{\"train\": [\"", options_.train_data_path[0],
                                "\"], \"valid\": \"", options_.valid_data_path[0],
                                "\", \"test\": [\"", options_.test_data_path[0], "\"]}")),
              IsOk());
  const auto same = OpenTrainingData(listed, *tokenizer_);
  ASSERT_THAT(same, IsOk());
  expect(*same->test, 200);
  EXPECT_EQ(same->fingerprint, data->fingerprint);
  EXPECT_THAT(
      list(R"({"train": ["a"], "valid": null})"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names nothing to validate on")));
  EXPECT_THAT(list("x"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("per_split.json: is no")));
  // A run without evaluations reads neither validation nor test data.
  options_.run.eval_interval = 0;
  const auto trained_only = Open();
  ASSERT_THAT(trained_only, IsOk());
  EXPECT_EQ(trained_only->test, nullptr);
}

TEST_F(TrainingDataTest, CyclicOrderTakesTheSameSamplesInAnotherOrderAndBeginsAgain) {
  options_.data_path = {Write("cyclic", 5, 50)};
  const auto single = Open();
  ASSERT_THAT(single, IsOk());
  const int64_t size = single->train->size();
  auto numbered = [&](const SampleSource& source, int64_t begin) {
    std::map<std::vector<int32_t>, int> counts;
    Sample sample;
    for (int64_t i = begin; i < begin + size; ++i) {
      EXPECT_THAT(source.Get(i, &sample), IsOk());
      ++counts[sample.positions];
      ++counts[sample.tokens];
    }
    return counts;
  };
  options_.cyclic = true;
  for (const bool data_sharding : {false, true}) {
    options_.data_sharding = data_sharding;
    const auto cyclic = Open();
    ASSERT_THAT(cyclic, IsOk());
    EXPECT_EQ(numbered(*cyclic->train, 0), numbered(*single->train, 0));
    EXPECT_EQ(numbered(*cyclic->train, size), numbered(*single->train, 0));
    EXPECT_EQ(PhaseSamples(cyclic->train.get(), /*taken_before=*/8).size(), cyclic->train->size());
  }
  options_.data_parallel_size = 1 << 20;
  EXPECT_THAT(Open(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.data_sharding")));
}

TEST_F(TrainingDataTest, ASplitWithoutASampleSaysWhichAndWhatToDo) {
  options_.data_path = {Write("tiny", 1, 1)};
  EXPECT_THAT(Open().status().message(), HasSubstr("data.split = 8,2"));
  options_.split = "1";
  EXPECT_THAT(Open().status().message(), HasSubstr("train.eval_iters = 0 turns evaluation off"));
  options_.run.eval_interval = 0;
  EXPECT_THAT(Open(), IsOk());
}

}  // namespace
}  // namespace megatron
