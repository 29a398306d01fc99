// Kills (kill -9) a random rank, or the process that started the ranks, at random moments, many of
// them inside a save: the same command, run again and again, ends with the bytes of the undisturbed
// run. The first argument is the number of kills.

#include <signal.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

int kills_of_each_layout = 5;

// The run saves at every step; with a model this small, saving takes most of the time.
const Arguments kCommon = {"--set=parallel.ranks_as=processes", "--set=checkpoint.save_interval=1",
                           "--set=train.train_iters=30", "--set=checkpoint.keep_last=2",
                           "--set=train.micro_batch_size=1"};

struct Layout {
  const char* name;
  Arguments arguments;
};

const std::vector<Layout>& Layouts() {
  static const auto* const layouts = new std::vector<Layout>{
      {"dp", {"--set=parallel.data_parallel_size=2", "--set=checkpoint.async_save=true"}},
      {"tp",
       {"--set=parallel.tensor_model_parallel_size=2", "--set=parallel.sequence_parallel=true"}},
      {"pp",
       {"--set=parallel.pipeline_model_parallel_size=2", "--set=parallel.data_parallel_size=2",
        "--set=parallel.use_distributed_optimizer=true"}},
      {"tp_dp",
       {"--set=parallel.tensor_model_parallel_size=2", "--set=parallel.data_parallel_size=2",
        "--set=parallel.use_distributed_optimizer=true", "--set=checkpoint.async_save=true"}},
      {"hosts",
       {"--set=parallel.data_parallel_size=4", "--set=parallel.use_distributed_optimizer=true",
        "--set=parallel.hierarchical_collectives_ranks_per_host=2"}},
      {"tree",
       {"--set=parallel.data_parallel_size=4", "--set=parallel.use_distributed_optimizer=true",
        "--set=parallel.collective_algorithm=tree"}},
      {"instances",
       {"--set=parallel.data_parallel_size=4", "--set=parallel.use_distributed_optimizer=true",
        "--set=parallel.data_parallel_sharding_strategy=optim_grads_params",
        "--set=parallel.num_distributed_optimizer_instances=2",
        "--set=parallel.outer_dp_sharding_strategy=optim"}},
      {"zeropp",
       {"--set=parallel.data_parallel_size=4", "--set=parallel.use_distributed_optimizer=true",
        "--set=parallel.data_parallel_sharding_strategy=optim_grads_params",
        "--set=parallel.hierarchical_collectives_ranks_per_host=2",
        "--set=parallel.zero_hpz_partition_size=0", "--set=parallel.zero_quantized_weights=true",
        "--set=parallel.zero_quantized_gradients=true"}},
      // Most checkpoints are of a moment between two outer steps.
      {"islands",
       {"--set=parallel.data_parallel_size=2", "--set=parallel.use_distributed_optimizer=true",
        "--set=parallel.num_distributed_optimizer_instances=2", "--set=diloco.sync_every=10",
        "--set=checkpoint.async_save=true"}},
      // Ranks hold whole matrices, and cut ones are updated by all that have a block.
      {"muon",
       {"--set=parallel.tensor_model_parallel_size=2", "--set=parallel.data_parallel_size=2",
        "--set=parallel.use_distributed_optimizer=true", "--set=optimizer.optimizer=muon",
        "--set=optimizer.muon_tp_mode=distributed", "--set=checkpoint.async_save=true"}},
      {"errors",
       {"--set=parallel.data_parallel_size=2", "--set=gradient_compression.type=int8",
        "--set=gradient_compression.start_iteration=5"}},
      // Ranks have weights of their own in most of the last steps.
      {"signs",
       {"--set=parallel.data_parallel_size=2", "--set=optimizer.optimizer=zero_one_adam",
        "--set=optimizer.var_freeze_step=10", "--set=optimizer.local_step_scaler=2",
        "--set=optimizer.local_step_clipper=5"}},
      {"square",
       {"--set=parallel.tensor_model_parallel_size=4", "--set=parallel.tensor_parallel_mode=2d",
        "--set=train.micro_batch_size=2"}},
      {"dropping",
       {"--set=parallel.tensor_model_parallel_size=2", "--set=parallel.sequence_parallel=true",
        "--set=model.num_layers=3", "--set=data.random_ltd={min_value: 16 require_steps: 40}",
        "--set=data.curriculum_learning={schedule_type: fixed_linear min_difficulty: 32 "
        "total_curriculum_step: 20}"}},
      {"local",
       {"--set=parallel.data_parallel_size=2", "--set=parallel.use_distributed_optimizer=true",
        "--set=checkpoint.save_interval=7", "--set=checkpoint.local_save_interval=1",
        absl::StrCat("--set=checkpoint.local_save=", testing::TempDir(), "local")}},
      {"files",
       {"--set=parallel.data_parallel_size=2", "--set=parallel.use_distributed_optimizer=true",
        "--set=optimizer.optimizer_cpu_offload=true",
        absl::StrCat("--set=optimizer.optimizer_offload_path=", testing::TempDir(), "states"),
        "--set=checkpoint.async_save=true"}},
  };
  return *layouts;
}

class PretrainKillsTest : public PretrainProgramTest {};

TEST_F(PretrainKillsTest, EndWithTheBytesOfTheUndisturbedRun) {
  const uint32_t seed = std::random_device()();
  std::mt19937 random(seed);
  const std::string log = Path("log.txt");
  for (const Layout& layout : Layouts()) {
    const std::string whole = std::string(layout.name) + "_whole",
                      killed = std::string(layout.name) + "_killed";
    const Arguments args = Joined(kCommon, layout.arguments);
    const absl::Time begin = absl::Now();
    ASSERT_EQ(Run(Joined({SaveTo(whole)}, args)).exit_code, kExitDone) << layout.name;
    const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    for (int kills = 0; kills < kills_of_each_layout; ++kills) {
      const pid_t pid = Start(Joined({SaveTo(killed)}, args), log);
      absl::SleepFor(absl::Seconds(seconds * std::uniform_real_distribution<>(0, 0.6)(random)));
      const std::vector<pid_t> ranks = ChildrenOf(pid);
      const size_t victim = random() % (ranks.size() + 1);
      kill(victim == ranks.size() ? pid : ranks[victim], SIGKILL);
      const Outcome outcome = FinishProgram(pid, log);
      EXPECT_TRUE(outcome.exit_code == -SIGKILL || outcome.exit_code == kExitPeerLost ||
                  outcome.exit_code == kExitDone)
          << "seed " << seed << ", code " << outcome.exit_code << "\n"
          << outcome.output;
    }
    const Outcome last = Run(Joined({SaveTo(killed)}, args));
    ASSERT_EQ(last.exit_code, kExitDone) << "seed " << seed << "\n" << last.output;
    ExpectEqualCheckpoints(whole, killed);
  }
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) megatron::kills_of_each_layout = std::atoi(argv[1]);
  return RUN_ALL_TESTS();
}
