// pretrain_gpt with a section of its own in the configuration:
//
//   pretrain_gpt_with_heartbeat --config=gpt_demo --set heartbeat.file=/tmp/alive
//
// Rank 0 writes the number of the iteration into that file as training goes on.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/examples/heartbeat.pb.h"
#include "megatron/train/pretrain_main.h"

namespace {

class Heartbeat {
 public:
  // Takes the section's values. Ranges and required fields have been checked.
  absl::Status Configure(const megatron::config::PretrainConfig& config) {
    if (!config.HasExtension(heartbeat::heartbeat)) return absl::OkStatus();
    config_ = config.GetExtension(heartbeat::heartbeat);
    if (absl::EndsWith(config_.file(), "/")) {
      return absl::InvalidArgumentError(
          absl::StrCat("heartbeat.file = ", config_.file(), " is a directory"));
    }
    config_.set_file(megatron::PathFromWhereTheUserStands(config_.file()));
    return absl::OkStatus();
  }

  // Called on each rank's thread before each piece of its work.
  void Beat(const megatron::PieceOfWork& piece) {
    if (config_.file().empty() || piece.world.rank() != 0) return;
    if (piece.iteration == last_ || piece.iteration % config_.interval() != 0) return;
    last_ = piece.iteration;
    const absl::Status written = megatron::WriteFileAtomically(
        megatron::PosixFileSystem(), config_.file(), absl::StrCat(piece.iteration, "\n"));
    LOG_IF(WARNING, !written.ok()) << "no heartbeat: " << written.message();
  }

 private:
  heartbeat::HeartbeatConfig config_;
  int64_t last_ = 0;  // used by rank 0 alone
};

}  // namespace

int main(int argc, char** argv) {
  Heartbeat heartbeat;
  megatron::PretrainProgram program = {"pretrain_gpt_with_heartbeat", "GPT", "gpt", "gpt_demo"};
  program.on_config = [&](const megatron::config::PretrainConfig& config) {
    return heartbeat.Configure(config);
  };
  program.on_piece = [&](const megatron::PieceOfWork& piece) { heartbeat.Beat(piece); };
  return megatron::PretrainMain(program, argc, argv);
}
