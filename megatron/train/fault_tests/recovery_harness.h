// What tests of runs that lose ranks and go on have in common: the runs' options, and the
// comparison of their losses with those of an undisturbed run.
#ifndef MEGATRON_TRAIN_FAULT_TESTS_RECOVERY_HARNESS_H_
#define MEGATRON_TRAIN_FAULT_TESTS_RECOVERY_HARNESS_H_

#include <cstddef>
#include <map>
#include <string>

#include "megatron/train/pretrain_harness.h"

namespace megatron {

class RecoveryTest : public PretrainProgramTest {
 protected:
  // SGD, whose rounding differences do not grow over many steps.
  static Arguments Base(int data_size, int iterations);
  static Arguments WithShardCopies(const std::string& strategy);

  // The losses of all steps of a run, by iteration. A step that is there twice fails.
  std::map<int, double> Losses(const std::string& run) const;
  // Fails where the losses differ by more than those of different layouts may, or a step is
  // missing.
  void ExpectSameCurve(const std::string& want, const std::string& got, size_t steps) const;
  // The number of steps that a run has made.
  int StepsOf(const std::string& run) const;
  // Waits until the run has made `steps` more steps than it had.
  void WaitForSteps(const std::string& run, int steps, const std::string& log) const;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAULT_TESTS_RECOVERY_HARNESS_H_
