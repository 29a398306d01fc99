// The exit codes of the programs. Scripts depend on them: never change one.
#ifndef MEGATRON_TRAIN_FAILURE_EXIT_CODE_H_
#define MEGATRON_TRAIN_FAILURE_EXIT_CODE_H_

namespace megatron {

enum ExitCode : int {
  kExitDone = 0,
  kExitSavedOnSignal = 10,
  kExitTimeLimit = 11,
  kExitValidationFailed = 17,  // as Megatron's rerun state machine
  kExitConfig = 20,
  kExitData = 21,
  kExitCorruptCheckpoint = 22,
  kExitIo = 23,
  kExitPeerLost = 30,
  kExitHang = 31,
  kExitNumeric = 40,
  kExitInterrupted = 130,  // a tool, by Ctrl-C
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_EXIT_CODE_H_
