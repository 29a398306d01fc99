#include "tools/torch_checkpoint/megatron_layout.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/torch_checkpoint/torch_test_writer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

absl::StatusOr<MegatronLayout> Read(PickleWriter* pickle) {
  const auto read = Pickle::Parse(pickle->EndObject().Finish());
  if (!read.ok()) return read.status();
  return LayoutOfMegatronArgs(read->root());
}

// Begins arguments with these sizes.
PickleWriter Begin(int64_t tensor, int64_t stages) {
  PickleWriter pickle;
  pickle.BeginObject("argparse", "Namespace").Text("tensor_model_parallel_size").Int(tensor);
  pickle.Text("pipeline_model_parallel_size").Int(stages);
  return pickle;
}

TEST(MegatronLayoutTest, ReadsHowRanksSharedTheModel) {
  PickleWriter pickle = Begin(4, 2);
  pickle.Text("virtual_pipeline_model_parallel_size").None();
  pickle.Text("account_for_loss_in_pipeline_split").Bool(false);
  pickle.Text("decoder_first_pipeline_num_layers").None();
  auto layout = Read(&pickle);
  ASSERT_THAT(layout, IsOk());
  EXPECT_EQ(layout->tensor_parallel, 4);
  EXPECT_EQ(layout->stages, 2);
  EXPECT_EQ(layout->chunks, 1);
  EXPECT_EQ(layout->expert_parallel, 1);
  EXPECT_EQ(layout->expert_tensor_parallel, 4);  // as layers
  pickle = Begin(1, 2);
  pickle.Text("virtual_pipeline_model_parallel_size").Int(3);
  pickle.Text("expert_model_parallel_size").Int(8).Text("expert_tensor_parallel_size").Int(2);
  layout = Read(&pickle);
  ASSERT_THAT(layout, IsOk());
  EXPECT_EQ(layout->chunks, 3);
  EXPECT_EQ(layout->parts(), 6);
  EXPECT_EQ(layout->expert_parallel, 8);
  EXPECT_EQ(layout->expert_tensor_parallel, 2);
}

TEST(MegatronLayoutTest, RefusesWhatItDoesNotKnow) {
  const auto refused = [](PickleWriter pickle, const char* message) {
    EXPECT_THAT(Read(&pickle).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  PickleWriter none;
  none.BeginObject("argparse", "Namespace");
  refused(none, "no tensor_model_parallel_size");
  refused(Begin(0, 1), "no tensor_model_parallel_size");
  refused(Begin(1, int64_t{1} << 40), "no pipeline_model_parallel_size");
  PickleWriter uneven = Begin(1, 2);
  uneven.Text("decoder_last_pipeline_num_layers").Int(3);
  refused(uneven, "decoder_last_pipeline_num_layers");
  PickleWriter loss = Begin(1, 2);
  loss.Text("account_for_loss_in_pipeline_split").Bool(true);
  refused(loss, "account_for_loss_in_pipeline_split");
}

}  // namespace
}  // namespace megatron
