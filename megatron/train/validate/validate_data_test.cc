// Tests the rules between the fields of a run's data.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Checks a configuration that is valid except for its data, with these overrides.
std::vector<std::string> ErrorsWith(const ConfigOverrides& overrides) {
  return ErrorsOf(
      "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
      "optimizer { lr: 1e-3 }\n"
      "train { micro_batch_size: 2 train_iters: 10 }\n",
      overrides, ConfigPurpose::kRun);
}

auto OneError(const std::string& field, const std::string& why) {
  return ElementsAre(AllOf(HasSubstr(field), HasSubstr(why)));
}

TEST(ValidateDataTest, OneSourceIsNeededAndNoMore) {
  EXPECT_THAT(ErrorsWith({}), OneError("data.data_path", "there is no data"));
  EXPECT_THAT(ErrorsWith({"data.data_path=a"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"data.train_data_path=a", "data.valid_data_path=b"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"data.data_path=a", "data.train_data_path=b", "data.valid_data_path=c"}),
              OneError("data.train_data_path", "contradicts"));
  EXPECT_THAT(ErrorsWith({"data.data_args_path=a"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"data.data_args_path=a", "data.data_path=b"}),
              OneError("data.data_args_path", "contradicts"));
  EXPECT_THAT(
      ErrorsWith({"data.mock_data=true", "data.train_data_path=b", "data.valid_data_path=c"}),
      OneError("data.mock_data", "contradicts"));
  EXPECT_THAT(ErrorsWith({"data.data_path=a", "data.stories={num_bytes: 10000}"}),
              OneError("data.stories", "choose one: --set data.stories= takes data.stories away"));
  EXPECT_THAT(ErrorsWith({"data.stories={num_bytes: 10000}", "data.stories=", "data.data_path=a"}),
              IsEmpty());
}

TEST(ValidateDataTest, OfTwoSourcesTheFilesIsToGo) {
  const auto errors_of = [](const std::string& data, const ConfigOverrides& overrides) {
    return ErrorsOf(
        "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
        "optimizer { lr: 1e-3 }\n"
        "train { micro_batch_size: 2 train_iters: 10 }\n" +
            data,
        overrides, ConfigPurpose::kRun);
  };
  const std::string stories = "data { stories { num_bytes: 10000 } }\n";
  EXPECT_THAT(errors_of(stories, {"data.data_path=a"}),
              OneError("data.stories", "--set data.stories= takes data.stories away"));
  EXPECT_THAT(errors_of(stories, {"data.data_path=a", "data.stories="}), IsEmpty());
  EXPECT_THAT(errors_of("data { data_path: \"a\" }\n", {"data.stories={num_bytes: 10000}"}),
              OneError("data.stories", "--set data.data_path= takes data.data_path away"));
}

TEST(ValidateDataTest, PartsWithFilesOfTheirOwnNeedBothAndNoSplit) {
  EXPECT_THAT(ErrorsWith({"data.train_data_path=a"}),
              OneError("data.valid_data_path", "train.eval_iters = 0 turns evaluation off"));
  EXPECT_THAT(ErrorsWith({"data.train_data_path=a", "train.eval_iters=0"}), IsEmpty());
  EXPECT_THAT(
      ErrorsWith({"data.train_data_path=a", "data.valid_data_path=b", "data.test_data_path=c"}),
      IsEmpty());
  EXPECT_THAT(ErrorsWith({"data.data_path=a", "data.test_data_path=b"}),
              OneError("data.test_data_path", "has no effect without data.train_data_path"));
  EXPECT_THAT(ErrorsWith({"data.train_data_path=a", "train.eval_iters=0", "data.test_data_path=b"}),
              OneError("data.test_data_path", "has no effect with train.eval_iters = 0"));
  EXPECT_THAT(ErrorsWith({"data.per_split_data_args_path=a"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"data.per_split_data_args_path=a", "data.split=9,1"}),
              OneError("data.split", "has no effect with data.per_split_data_args_path"));
  EXPECT_THAT(ErrorsWith({"data.per_split_data_args_path=a", "data.data_path=b"}),
              OneError("data.per_split_data_args_path", "contradicts"));
  EXPECT_THAT(ErrorsWith({"data.per_split_data_args_path=a", "data.test_data_path=b"}),
              OneError("data.test_data_path", "has no effect without data.train_data_path"));
  EXPECT_THAT(ErrorsWith({"data.data_path=a", "data.valid_data_path=b"}),
              OneError("data.valid_data_path", "has no effect without data.train_data_path"));
  EXPECT_THAT(ErrorsWith({"data.train_data_path=a", "data.valid_data_path=b", "data.split=9,1"}),
              OneError("data.split", "has no effect with data.train_data_path"));
  EXPECT_THAT(ErrorsWith({"data.train_data_path=[\"\"]", "data.valid_data_path=b"}),
              OneError("data.train_data_path", "empty prefix"));
}

TEST(ValidateDataTest, FieldsOfFilesAreRefusedWithoutFiles) {
  for (const std::string field : {"data.data_cache_path=c", "data.mmap_bin_files=false"}) {
    EXPECT_THAT(ErrorsWith({"data.mock_data=true", field}),
                OneError(field.substr(0, field.find('=')), "has no effect without data.data_path"));
    EXPECT_THAT(ErrorsWith({"data.data_path=a", field}), IsEmpty());
  }
}

TEST(ValidateDataTest, ConversationsAreFiles) {
  EXPECT_THAT(ErrorsWith({"data.data_path=a.jsonl", "data.sft=true"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"data.data_path=a.jsonl", "data.sft=true",
                          "data.sft_tokenizer_prompt_format=chatml",
                          "data.sft_long_conversations=drop", "data.sampling_alpha=0.3"}),
              IsEmpty());
  EXPECT_THAT(ErrorsWith({"data.stories={}", "data.sft=true"}),
              OneError("data.sft", "has no effect without data.data_path"));
  EXPECT_THAT(ErrorsWith({"data.data_path=a", "data.sft_long_conversations=drop"}),
              OneError("data.sft_long_conversations", "has no effect"));
  for (const std::string field :
       {"data.reset_position_ids=true", "data.reset_attention_mask=true", "data.eod_mask_loss=true",
        "data.fim_data={}", "data.data_cache_path=c", "data.mmap_bin_files=false"}) {
    EXPECT_THAT(ErrorsWith({"data.data_path=a", "data.sft=true", field}),
                OneError(field.substr(0, field.find('=')), "has no effect with data.sft"))
        << field;
  }
  EXPECT_THAT(ErrorsWith({"data.data_path=a", "data.sampling_alpha=1.5"}),
              OneError("data.sampling_alpha", "expects a number from 0 to 1"));
}

TEST(ValidateDataTest, ValidationSetsAreFilesOfTheirOwn) {
  const ConfigOverrides own = {"data.train_data_path=a", "data.valid_data_path=[\"b\", \"c\"]"};
  const auto with = [&](ConfigOverrides more) {
    more.insert(more.end(), own.begin(), own.end());
    return ErrorsWith(more);
  };
  EXPECT_THAT(with({"train.multiple_validation_sets=true", "train.full_validation=true"}),
              IsEmpty());
  EXPECT_THAT(with({"train.multiple_validation_sets=true", "train.eval_interval=0"}),
              OneError("train.multiple_validation_sets", "has no effect with train.eval_interval"));
  EXPECT_THAT(
      ErrorsWith({"data.data_path=a", "train.multiple_validation_sets=true"}),
      OneError("train.multiple_validation_sets", "has no effect without data.valid_data_path"));
  EXPECT_THAT(ErrorsWith({"data.data_path=a", "train.full_validation=true"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"data.mock_data=true", "train.full_validation=true"}),
              OneError("train.full_validation", "has no end"));
}

TEST(ValidateDataTest, NamesOfValidationSetsDiffer) {
  const auto with = [](const std::string& names) {
    return ErrorsWith({"data.train_data_path=a", "data.valid_data_path=[\"b\", \"c\"]",
                       "train.multiple_validation_sets=true",
                       "train.validation_set_names=" + names});
  };
  EXPECT_THAT(with("[\"German\", \"French\"]"), IsEmpty());
  const char* const kPath = "train.validation_set_names";
  EXPECT_THAT(with("[\"a\", \"a\"]"), OneError(kPath, "has \"a\" twice"));
  EXPECT_THAT(with("[\"a\", \"\"]"), OneError(kPath, "an empty name"));
  EXPECT_THAT(with("[\"ppl\", \"a\"]"), OneError(kPath, "the perplexity's name"));
  EXPECT_THAT(with("[\"a\", \"b\\nc\"]"), OneError(kPath, "'b\\nc', which has a line break"));
  EXPECT_THAT(ErrorsWith({"data.mock_data=true", "train.validation_set_names=[\"a\"]"}),
              OneError(kPath, "has no effect with train.multiple_validation_sets = false"));
}

TEST(ValidateDataTest, TasksArePartsOfEvaluations) {
  const auto with = [](ConfigOverrides more) {
    more.push_back("data.mock_data=true");
    return ErrorsWith(more);
  };
  const std::string tasks = "train.eval_tasks=[\"piqa=a.jsonl\", \"wikitext103=b=c\"]";
  EXPECT_THAT(with({tasks}), IsEmpty());
  EXPECT_THAT(with({tasks, "train.eval_interval=50", "train.eval_tasks_interval=100"}), IsEmpty());
  const char* const kPath = "train.eval_tasks";
  EXPECT_THAT(with({"train.eval_tasks=[\"piqa\"]"}), OneError(kPath, "TASK=FILE"));
  EXPECT_THAT(with({"train.eval_tasks=[\"piqa=\"]"}), OneError(kPath, "TASK=FILE"));
  EXPECT_THAT(with({"train.eval_tasks=[\"piqua=a\"]"}),
              OneError(kPath, "there is no task 'piqua'"));
  EXPECT_THAT(with({"train.eval_tasks=[\"piqa=a\", \"piqa=b\"]"}), OneError(kPath, "piqa twice"));
  EXPECT_THAT(with({tasks, "train.eval_iters=0"}), OneError(kPath, "train.eval_iters"));
  EXPECT_THAT(with({tasks, "train.eval_interval=0"}), OneError(kPath, "train.eval_interval"));
  EXPECT_THAT(with({tasks, "train.eval_interval=50", "train.eval_tasks_interval=70"}),
              OneError("train.eval_tasks_interval", "must be a multiple of"));
  EXPECT_THAT(with({tasks, "train.overlapping_eval=1000000"}),
              OneError("train.overlapping_eval", "model.seq_length"));
  EXPECT_THAT(with({"train.eval_tasks=[\"piqa=a\"]", "train.overlapping_eval=8"}),
              OneError("train.overlapping_eval", "of which none is one text"));
  EXPECT_THAT(with({"train.eval_tasks_limit=3"}),
              OneError("train.eval_tasks_limit", "has no effect without train.eval_tasks"));
}

TEST(ValidateDataTest, BucketsOfRanksAreForCyclicOrderOnly) {
  EXPECT_THAT(ErrorsWith({"data.mock_data=true", "data.data_sharding=true"}),
              OneError("data.data_sharding", "has no effect"));
  EXPECT_THAT(
      ErrorsWith({"data.mock_data=true", "data.data_sharding=true", "data.dataloader_type=cyclic"}),
      IsEmpty());
}

}  // namespace
}  // namespace megatron
