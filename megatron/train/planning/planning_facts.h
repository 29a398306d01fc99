// What a run's predictions are made from: the hardware, this program's constants, measured kernels.
#ifndef MEGATRON_TRAIN_PLANNING_PLANNING_FACTS_H_
#define MEGATRON_TRAIN_PLANNING_PLANNING_FACTS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

struct PlanningFacts {
  Hardware hardware;
  Implementation program;
  MeasuredKernels kernels;
  std::string source;  // "hardware.textproto (EPYC x2)", or that the figures come with the program
  bool is_rough = false;  // nothing was measured on this kind of hardware
  std::string digest;     // the same for the same figures
};

// Reads system.hardware_file, which must have one hardware, and system.kernels_file. Without the
// first, takes the figures that come with the program: those of the GPU here, by its name, or rough
// ones of a processor with this machine's cores and memory. A file without this program's constants
// gets the ones that come with it. Errors are kInvalidArgument, and name the field.
absl::StatusOr<PlanningFacts> ReadPlanningFacts(FileSystem& fs, const PlanningOptions& options,
                                                bool is_gpu);

// The same for a run; nothing for one that is not to be predicted.
absl::StatusOr<std::optional<PlanningFacts>> ReadFactsOfRun(FileSystem& fs,
                                                            const RunOptions& options);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_PLANNING_FACTS_H_
