// Steps of a trainer that are computed again (step_validator.h).
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/trainer/grid_groups.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {
namespace {

// Gradients in fp32 or bf16, in this process's memory.
bool AllFinite(const Tensor& gradients) {
  const int64_t count = gradients.numel();
  if (gradients.dtype() == DType::kBFloat16) {
    const BFloat16* const values = gradients.data<BFloat16>();
    return std::all_of(values, values + count,
                       [](BFloat16 value) { return std::isfinite(ToFloat(value)); });
  }
  const float* const values = gradients.data<float>();
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

}  // namespace

bool Trainer::KeepsOwnGradients() const {
  const DataParallelOptions& options = options_.data_parallel;
  return data_parallel_->keeps_gradients() && !options.overlap_grad_reduce;
}

bool Trainer::CanComputeForOthers() const {
  const bool whole =
      options_.sharding == DataSharding::kNone || options_.sharding == DataSharding::kStates;
  return island_.data.size() > 1 && whole && !buffers_->copies_gradients() &&
         !options_.data_parallel.overlap_grad_reduce && !GridOf(groups_).is_grid() &&
         options_.model.transformer.moe.num_experts == 0;
}

uint32_t Trainer::ChecksumOfGradients(bool all, bool* finite) const {
  uint32_t crc = 0;
  for (const Bucket& bucket : buffers_->buckets()) {
    if (IsFrozen(bucket.section)) continue;
    const FlatRange range = all ? bucket.range : buffers_->reduced_range(bucket);
    if (range.size() == 0) continue;
    const Tensor gradients = buffers_->Gradients(bucket, range);
    crc = ExtendCrc32c(crc, absl::string_view(static_cast<const char*>(gradients.raw()),
                                              static_cast<size_t>(gradients.bytes())));
    if (finite != nullptr && *finite) *finite = AllFinite(gradients);
  }
  return crc;
}

absl::StatusOr<StepFinding> Trainer::ValidateStep(const SampleSource& source,
                                                  const MicroBatchPacker::Step& packed,
                                                  Diagnostics* diagnostics,
                                                  const ExecutedStep& first) {
  const int64_t iteration = progress_.iteration + 1;
  MEGATRON_ASSIGN_OR_RETURN(const bool is_due, validator_->IsDue(iteration, first));
  if (!is_due) return StepFinding();
  const auto execute = [&](StepValidator::Samples samples) -> absl::StatusOr<ExecutedStep> {
    const MicroBatchPacker* packer = &packer_;
    if (samples == StepValidator::kOfNextCopy) {
      packer = next_packer_.get();
      MEGATRON_RETURN_IF_ERROR(next_packer_->Pack(source, packed, SamplesGroup(), stream_));
    }
    ExecutedStep executed;
    MEGATRON_RETURN_IF_ERROR(RunPasses({&source, packer, packed.micro_batches, diagnostics,
                                        /*read_ahead=*/false, &executed}));
    return executed;
  };
  MEGATRON_ASSIGN_OR_RETURN(StepFinding finding, validator_->Validate(first, execute));
  if (!finding.message.empty())
    finding.message = absl::StrCat("iteration ", iteration, ": ", finding.message);
  if (finding.ends_the_run())
    return WithExitCode(absl::DataLossError(finding.message), kExitValidationFailed);
  return finding;
}

}  // namespace megatron
