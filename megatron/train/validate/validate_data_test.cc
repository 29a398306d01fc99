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

TEST(ValidateDataTest, BucketsOfRanksAreForCyclicOrderOnly) {
  EXPECT_THAT(ErrorsWith({"data.mock_data=true", "data.data_sharding=true"}),
              OneError("data.data_sharding", "has no effect"));
  EXPECT_THAT(
      ErrorsWith({"data.mock_data=true", "data.data_sharding=true", "data.dataloader_type=cyclic"}),
      IsEmpty());
}

}  // namespace
}  // namespace megatron
