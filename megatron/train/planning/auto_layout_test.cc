#include "megatron/train/planning/auto_layout.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kText[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 64 }\n"
    "optimizer { lr: 0.9 lr_warmup_iters: 2 }\n"
    "train { micro_batch_size: 1 global_batch_size: 16 train_iters: 16 auto_layout: true }\n"
    "system { device: cpu hardware_file: 'hardware.textproto' }\n"
    "checkpoint { save: 'run' }\n"
    "data { stories {} }\n";

constexpr char kHardware[] =
    "hardware { name: 'mine' fp32_tflops: 0.1 bf16_tflops: 0.1 memory_gib: 16 memory_gb_per_s: 20 "
    "link_gb_per_s: 8 domain: 64 network_gb_per_s: 1 cores: 8 thread_efficiency: 0.9 ";

class AutoLayoutTest : public ::testing::Test {
 protected:
  AutoLayoutTest() {
    EXPECT_THAT(disk_.CreateDirs("run"), IsOk());
    SetHardware(absl::StrCat(kHardware, "}"));
  }

  void SetHardware(const std::string& text) {
    ASSERT_THAT(WriteFileAtomically(disk_, "hardware.textproto", text), IsOk());
  }
  absl::StatusOr<SavedLayout> Choose(int64_t launched, const std::vector<std::string>& set = {}) {
    LayoutRequest request;
    request.parsed = ParseConfig(kText, "x.textproto", set);
    EXPECT_TRUE(request.parsed.errors.empty());
    request.launched = request.launched_here = launched;
    return ChooseLayout(disk_, request);
  }
  // The number of ranks of the run with this layout.
  static int64_t RanksOf(const SavedLayout& layout, const std::vector<std::string>& set = {}) {
    const auto loaded =
        LoadConfigFromString(kText, "x.textproto", WithLayout(set, layout), ConfigPurpose::kDryRun);
    EXPECT_THAT(loaded, IsOk());
    if (!loaded.ok()) return 0;
    const config::ParallelConfig& parallel = loaded->config.parallel();
    return parallel.tensor_model_parallel_size() * parallel.context_parallel_size() *
           parallel.pipeline_model_parallel_size() * parallel.data_parallel_size();
  }
  static std::string Lines(const SavedLayout& layout) { return absl::StrJoin(layout.line(), "\n"); }

  MemoryFileSystem disk_;
};

TEST_F(AutoLayoutTest, ALayoutForEachNumberOfRanksIsAValidConfiguration) {
  for (const int64_t ranks : {1, 2, 4, 8}) {
    const auto chosen = Choose(/*launched=*/0, {absl::StrCat("train.auto_layout_ranks=", ranks)});
    ASSERT_THAT(chosen, IsOk());
    EXPECT_EQ(RanksOf(*chosen, {absl::StrCat("train.auto_layout_ranks=", ranks)}), ranks);
    EXPECT_THAT(Lines(*chosen), AllOf(HasSubstr("the fastest of"), HasSubstr("(mine)")));
  }
}

TEST_F(AutoLayoutTest, TheSameFilesGiveTheSameChoice) {
  EXPECT_EQ(LayoutText(*Choose(8)), LayoutText(*Choose(8)));
}

TEST_F(AutoLayoutTest, WhereProcessesExchangeSlowlyNoLayerIsCut) {
  const auto fast = Choose(8);
  ASSERT_THAT(fast, IsOk());
  std::string slow = absl::StrCat(kHardware, "}");
  absl::StrReplaceAll({{"network_gb_per_s: 1", "network_gb_per_s: 0.001"}}, &slow);
  SetHardware(slow);
  const auto chosen = Choose(8);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_THAT(chosen->layout(), Not(HasSubstr("tp ")));
  EXPECT_GT(chosen->predicted_seconds(), 10 * fast->predicted_seconds());
}

TEST_F(AutoLayoutTest, WrittenFieldsOfALayoutAreKept) {
  const std::vector<std::string> written = {"parallel.tensor_model_parallel_size=2",
                                            "parallel.use_distributed_optimizer=true",
                                            "recompute.recompute_granularity=full"};
  const auto chosen = Choose(8, written);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_THAT(chosen->layout(),
              AllOf(HasSubstr("tp 2"), HasSubstr("ZeRO-1"), HasSubstr("recompute full")));
  EXPECT_EQ(RanksOf(*chosen, written), 8);
  EXPECT_THAT(Lines(*chosen), HasSubstr("kept as written: parallel.tensor_model_parallel_size=2, "
                                        "parallel.use_distributed_optimizer=true"));
  EXPECT_THAT(Choose(8, {"parallel.tensor_model_parallel_size=3"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no layout of 8 ranks has all that is written: "
                                 "parallel.tensor_model_parallel_size=3")));
}

// It does nothing there, as the run says.
TEST_F(AutoLayoutTest, OnAProcessorAWrittenOffloadChangesNoLayout) {
  const auto plain = Choose(4);
  const auto offload = Choose(4, {"optimizer.optimizer_cpu_offload=true"});
  ASSERT_THAT(offload, IsOk());
  EXPECT_EQ(offload->layout(), plain->layout());
  EXPECT_EQ(offload->predicted_seconds(), plain->predicted_seconds());
}

// A GPU of 143 MiB has no room for 196 MiB of weights, gradients and states.
TEST_F(AutoLayoutTest, ARunLeavesOnTheHostWhatItsLayoutHasThere) {
  const std::vector<std::string> set = {"system.device=cuda", "model.hidden_size=512"};
  SetHardware(
      "hardware { name: 'gpu' fp32_tflops: 60 bf16_tflops: 900 memory_gib: 0.14 "
      "memory_gb_per_s: 3000 link_gb_per_s: 300 domain: 8 network_gb_per_s: 50 "
      "host_link_gb_per_s: 50 host_memory_gb_per_s: 50 host_memory_gb: 10 }");
  const auto chosen = Choose(1, set);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_THAT(chosen->layout(), HasSubstr("on the host"));
  const auto loaded =
      LoadConfigFromString(kText, "x.textproto", WithLayout(set, *chosen), ConfigPurpose::kDryRun);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_TRUE(loaded->config.optimizer().optimizer_cpu_offload());
}

TEST_F(AutoLayoutTest, NamesFieldsThatThePredictionDoesNotKnow) {
  EXPECT_THAT(Lines(*Choose(4)), Not(HasSubstr("log_params_norm")));
  EXPECT_THAT(Lines(*Choose(4, {"logging.log_params_norm=true"})),
              AllOf(HasSubstr("layout: not priced: "), HasSubstr("logging.log_params_norm=true")));
}

TEST_F(AutoLayoutTest, WhatNeedsSeveralRanksIsJudgedWithTheLayout) {
  EXPECT_THAT(Choose(8, {"logging.profile=true", "logging.profile_ranks=[0, 3]"}), IsOk());
  EXPECT_THAT(Choose(8, {"gradient_compression.type=int8"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("cannot be used with train.auto_layout"),
                             Not(HasSubstr("one data-parallel rank")))));
}

TEST_F(AutoLayoutTest, TheMicroBatchIsChosenThoughItIsWritten) {
  const auto chosen = Choose(1);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_THAT(LayoutText(*chosen), HasSubstr("train.micro_batch_size=16"));
}

TEST_F(AutoLayoutTest, ChunksStayAsTheyAreWritten) {
  const auto chosen =
      Choose(8, {"recompute.mlp_chunk_tokens=16", "recompute.attention_chunk_tokens=16"});
  ASSERT_THAT(chosen, IsOk());
  EXPECT_THAT(LayoutText(*chosen), Not(HasSubstr("set: \"recompute.mlp_chunk_tokens")));
  EXPECT_THAT(LayoutText(*chosen), Not(HasSubstr("set: \"recompute.attention_chunk_tokens")));
}

TEST_F(AutoLayoutTest, ASavedLayoutIsKeptOnAsManyRanks) {
  const auto first = Choose(8, {"parallel.pipeline_model_parallel_size=4"});
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(SaveLayout(disk_, "run", *first), IsOk());
  const auto again = Choose(8);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->layout(), first->layout());
  EXPECT_THAT(Lines(*again), AllOf(HasSubstr("kept, as run/auto_layout.textproto has it"),
                                   Not(HasSubstr("other figures"))));
  EXPECT_EQ(RanksOf(*again), 8);
  // What is kept isn't written again.
  const std::string file = *ReadFileToString(disk_, "run/auto_layout.textproto");
  ASSERT_THAT(SaveLayout(disk_, "run", *again), IsOk());
  EXPECT_EQ(*ReadFileToString(disk_, "run/auto_layout.textproto"), file);
}

TEST_F(AutoLayoutTest, OtherHardwareLeavesASavedLayoutAndIsTold) {
  ASSERT_THAT(SaveLayout(disk_, "run", *Choose(8)), IsOk());
  SetHardware(absl::StrCat(kHardware, "link_latency_us: 3 }"));
  const auto again = Choose(8);
  ASSERT_THAT(again, IsOk());
  EXPECT_THAT(Lines(*again), AllOf(HasSubstr("kept, as"), HasSubstr("other figures")));
}

TEST_F(AutoLayoutTest, WhereASavedLayoutCannotBeKeptTheReasonIsTold) {
  ASSERT_THAT(SaveLayout(disk_, "run", *Choose(8)), IsOk());
  const auto fewer = Choose(4);
  ASSERT_THAT(fewer, IsOk());
  EXPECT_EQ(fewer->ranks(), 4);
  EXPECT_THAT(Lines(*fewer), AllOf(HasSubstr("chosen anew"), HasSubstr("it is for 8 ranks")));
  const auto other = Choose(8, {"parallel.tensor_model_parallel_size=4"});
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT(Lines(*other), HasSubstr("it is not parallel.tensor_model_parallel_size=4"));
}

TEST_F(AutoLayoutTest, AFileThatIsNoLayoutIsPassedOver) {
  for (const std::string text :
       {"ranks: \"x", "\x01\x02", "", "ranks: 8 set: 'nope=3'", "ranks: 8 set: ''",
        "ranks: 8 set: 'checkpoint.save=else'", "ranks: 8 set: 'train.micro_batch_size=3'"}) {
    ASSERT_THAT(WriteFileAtomically(disk_, "run/auto_layout.textproto", text), IsOk());
    const auto chosen = Choose(8);
    ASSERT_THAT(chosen, IsOk()) << text;
    EXPECT_THAT(Lines(*chosen), HasSubstr("chosen anew")) << text;
    EXPECT_EQ(RanksOf(*chosen), 8);
  }
}

TEST_F(AutoLayoutTest, AGridThatIsWrittenIsKept) {
  for (const std::string mode : {"2d", "2.5d", "3d"}) {
    const std::vector<std::string> set = {absl::StrCat("parallel.tensor_parallel_mode=", mode)};
    const auto chosen = Choose(8, set);
    ASSERT_THAT(chosen, IsOk()) << mode;
    EXPECT_EQ(RanksOf(*chosen, set), 8) << mode;
    const auto loaded = LoadConfigFromString(kText, "x.textproto", WithLayout(set, *chosen),
                                             ConfigPurpose::kDryRun);
    ASSERT_THAT(loaded, IsOk());
    EXPECT_EQ(loaded->config.parallel().tensor_parallel_mode(), mode);
    EXPECT_GT(loaded->config.parallel().tensor_model_parallel_size(), 1);
  }
}

TEST_F(AutoLayoutTest, MistakesAreNamed) {
  struct Case {
    std::vector<std::string> set;
    const char* message;
  };
  const std::vector<Case> cases = {
      {{"train.global_batch_size="}, "train.global_batch_size: must be written"},
      {{"train.auto_layout_ranks=2"}, "the launcher has started 8 ranks"},
      {{"system.hardware_file=none"}, "system.hardware_file = none: "},
      {{"system.kernels_file=hardware.textproto"}, "system.kernels_file = hardware.textproto: "},
      {{"model.hidden_size=66"}, "--set model.hidden_size=66: "},
      {{"model.hidden_size=65536", "model.num_layers=64"},
       "fits in the 1.90 GiB of a rank: the smallest"},
      {{"train.global_batch_size=1", "model.num_layers=1", "model.num_attention_heads=1"},
       "no layout divides this model over 8 ranks"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Choose(8, c.set),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("train.auto_layout: "), HasSubstr(c.message))));
  }
}

TEST_F(AutoLayoutTest, AWrongHardwareFileIsNamed) {
  const std::string one = absl::StrCat(kHardware, "}");
  for (const std::string& text : {std::string("hardware {"), std::string(""), one + one,
                                  absl::StrCat(kHardware, "link_latency_us: -1 }")}) {
    SetHardware(text);
    EXPECT_THAT(Choose(8), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("system.hardware_file = hardware.textproto")))
        << text;
  }
}

TEST_F(AutoLayoutTest, WithoutAFileTheFiguresOfAProcessorAreRough) {
  const auto chosen = Choose(2, {"system.hardware_file="});
  ASSERT_THAT(chosen, IsOk());
  EXPECT_THAT(Lines(*chosen), AllOf(HasSubstr("rough figures"), HasSubstr("tools:calibrate")));
}

TEST_F(AutoLayoutTest, KernelsBesideTheHardwareAreRead) {
  const double before = Choose(8)->predicted_seconds();
  std::string table = "gpu,kernel,pass,m,n,k,share_of_peak\n";
  for (const char* pass : {"forward", "input_gradient", "weight_gradient"})
    absl::StrAppend(&table, "mine,product,", pass, ",64,64,64,0.01\n");
  ASSERT_THAT(WriteFileAtomically(disk_, "kernels.csv", table), IsOk());
  EXPECT_GT(Choose(8)->predicted_seconds(), before);
}

}  // namespace
}  // namespace megatron
