#include "tools/common/import_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

config::PretrainConfig ImportedModel() {
  config::PretrainConfig config;
  config.mutable_model()->set_hidden_size(32);
  config.mutable_model()->set_num_experts(4);
  config.mutable_optimizer()->set_lr(1e-5);
  config.mutable_train()->set_micro_batch_size(1);
  config.mutable_train()->set_train_iters(1000);
  return config;
}

TEST(ImportTextTest, TheCompleteTextHasWhatIsComputed) {
  EXPECT_THAT(
      CompleteText(ImportedModel()),
      AllOf(HasSubstr(" ffn_hidden_size: 128\n"), HasSubstr("global_batch_size: 1\n"),
            HasSubstr("lr_decay_iters: 1000\n"), HasSubstr("start_weight_decay: 0.01\n"),
            HasSubstr("end_weight_decay: 0.01\n"), HasSubstr("expert_tensor_parallel_size: 1\n")));
}

TEST(ImportTextTest, TheTextToTrainFromPinsNothingThatFollowsFromWhatTheUserSets) {
  EXPECT_THAT(TextToTrainFrom(ImportedModel()),
              AllOf(HasSubstr(" ffn_hidden_size: 128\n"), HasSubstr("train_iters: 1000\n"),
                    HasSubstr("micro_batch_size: 1\n"), HasSubstr(" weight_decay: 0.01\n"),
                    Not(HasSubstr("global_batch_size")), Not(HasSubstr("lr_decay_iters")),
                    Not(HasSubstr("start_weight_decay")), Not(HasSubstr("end_weight_decay")),
                    Not(HasSubstr("expert_tensor_parallel_size"))));
}

TEST(ImportTextTest, TheTextToTrainFromKeepsWhatIsSet) {
  config::PretrainConfig config = ImportedModel();
  config.mutable_train()->set_global_batch_size(8);
  config.mutable_optimizer()->set_lr_decay_iters(50);
  EXPECT_THAT(TextToTrainFrom(config),
              AllOf(HasSubstr("global_batch_size: 8\n"), HasSubstr("lr_decay_iters: 50\n")));
}

}  // namespace
}  // namespace megatron
