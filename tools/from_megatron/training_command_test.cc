#include "tools/from_megatron/training_command.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "tools/from_megatron/shell_reader.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

// Returns "program: first flag: world size (launched)", or the error.
std::string Found(absl::string_view script) {
  const absl::StatusOr<ShellScript> read = ReadShell(script, {});
  EXPECT_THAT(read, IsOk());
  const absl::StatusOr<TrainingCommand> command = FindTrainingCommand(*read);
  if (!command.ok()) return std::string(command.status().message());
  return absl::StrCat(command->program, ": ", command->flags.empty() ? "" : command->flags[0].text,
                      ": ", command->world_size, " (", command->launched, ")");
}

TEST(TrainingCommandTest, KnowsTheLaunchers) {
  EXPECT_EQ(Found("torchrun --nproc_per_node 8 --nnodes=4 dir/pretrain_gpt.py --a 1"),
            "pretrain_gpt.py: --a: 32 (4 nodes of 8 processes)");
  EXPECT_EQ(Found("python -m torch.distributed.launch --nproc-per-node=2 pretrain_bert.py --a"),
            "pretrain_bert.py: --a: 2 (1 node of 2 processes)");
  EXPECT_EQ(Found("torchrun --standalone --nproc_per_node=1 pretrain_t5.py --a"),
            "pretrain_t5.py: --a: 1 (1 node of 1 process)");
  EXPECT_EQ(Found("srun -N 2 --ntasks-per-node=4 python -u pretrain_gpt.py --a"),
            "pretrain_gpt.py: --a: 8 (2 nodes of 4 processes)");
  EXPECT_EQ(
      Found("#SBATCH --nodes=3 --ntasks-per-node=4\nsrun bash -c 'python pretrain_gpt.py --a'"),
      "pretrain_gpt.py: --a: 12 (3 nodes of 4 processes)");
  EXPECT_EQ(Found("srun -n16 python pretrain_gpt.py --a"),
            "pretrain_gpt.py: --a: 16 (1 node of 16 processes)");
  EXPECT_EQ(Found("deepspeed --num_gpus 8 --num_nodes 2 pretrain_gpt.py --a"),
            "pretrain_gpt.py: --a: 16 (2 nodes of 8 processes)");
  EXPECT_EQ(Found("mpirun -np 4 -x A=b python pretrain_gpt.py --a"),
            "pretrain_gpt.py: --a: 4 (1 node of 4 processes)");
}

TEST(TrainingCommandTest, DoesNotGuessTheNumberOfProcesses) {
  EXPECT_EQ(Found("python pretrain_gpt.py --a"), "pretrain_gpt.py: --a: 0 ()");
  EXPECT_EQ(Found("torchrun --nproc_per_node gpu pretrain_gpt.py --a"),
            "pretrain_gpt.py: --a: 0 ()");
  EXPECT_EQ(Found("torchrun --nproc_per_node 8 --nnodes 1:4 pretrain_gpt.py --a"),
            "pretrain_gpt.py: --a: 0 ()");
  EXPECT_EQ(Found("deepspeed --hostfile hosts --num_gpus 8 pretrain_gpt.py --a"),
            "pretrain_gpt.py: --a: 0 ()");
}

TEST(TrainingCommandTest, TakesFlagsAlone) {
  EXPECT_EQ(Found("--num-layers 2 \\\n --hidden-size 8"), ": --num-layers: 0 ()");
}

TEST(TrainingCommandTest, TakesOtherProgramsByTheirFlags) {
  EXPECT_EQ(Found("cd a\npython prepare.py --b\npython train.py --num-layers 2"),
            "train.py: --num-layers: 0 ()");
}

TEST(TrainingCommandTest, WantsOneTraining) {
  EXPECT_EQ(Found("a\npython pretrain_gpt.py --a\npython pretrain_gpt.py --b"),
            "line 3 starts a second training, after line 2; give a script with one of them");
  EXPECT_EQ(Found("echo a"),
            "no command runs a file pretrain_*.py, and none begins with a flag; give the script "
            "that starts the training, or its flags alone; a ds_config.json is given by "
            "--deepspeed_config=FILE");
}

}  // namespace
}  // namespace megatron
