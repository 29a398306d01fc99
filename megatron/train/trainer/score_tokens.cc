// The losses of single tokens, for evaluations on tasks.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/model_stage.h"
#include "megatron/pipeline/executor.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {
namespace {

// The scores of a batch's tokens: losses and hits by sample and position. Ranks that have other
// tokens leave kUnknown, which is below all scores, so that the maximum over ranks is the whole.
class ScoreTable {
 public:
  ScoreTable(int64_t samples, int64_t length)
      : length_(length), scores_(2 * samples * length, kUnknown) {}

  // Takes those of this rank's micro-batch from fp32 [2, T]. All is on the host.
  void Take(const MicroBatch& batch, int64_t first_sample, const Tensor& scores_2T) {
    const float* const losses = scores_2T.Select(0, 0).data<float>();
    const float* const hits = scores_2T.Select(0, 1).data<float>();
    for (int64_t t = 0; t < batch.num_tokens(); ++t) {
      if (batch.labels_T.data<int32_t>()[t] < 0) continue;  // fills the micro-batch up
      const int64_t sample = batch.sample_T.data<int64_t>()[t] - first_sample;
      const int64_t at = sample * length_ + batch.sample_position_T.data<int32_t>()[t];
      CHECK(at >= 0 && at < half()) << at;
      // NaN has no place in an order.
      scores_[at] = std::isnan(losses[t]) ? std::numeric_limits<float>::infinity() : losses[t];
      scores_[half() + at] = hits[t];
    }
  }

  void Join(const ProcessGroup& ranks, const Stream& stream) {
    const Tensor all(scores_.data(), DType::kFloat32, {2 * half()});
    ranks.AllReduce(all, ReduceOp::kMax, stream);
  }

  absl::Span<const float> losses() const { return absl::MakeConstSpan(scores_).first(half()); }
  absl::Span<const float> hits() const { return absl::MakeConstSpan(scores_).last(half()); }

 private:
  static constexpr float kUnknown = -1;

  int64_t half() const { return static_cast<int64_t>(scores_.size()) / 2; }

  const int64_t length_;
  std::vector<float> scores_;
};

}  // namespace

absl::Status Trainer::ScoreTokens(const SampleSource& source, TakeTokenScores take) {
  CHECK(options_.scores_tokens);
  const int64_t batch = options_.batch_size.global_batch_size;
  CHECK_EQ(source.size() % batch, 0);
  MicroBatchPacker::Step packed;
  packed.micro_batches = options_.batch_size.MicroBatchesOf(batch);
  if (batch % options_.batch_size.granularity != 0) packed.samples = batch;
  const StagePlan plan = plans_.Forward(packed.micro_batches);
  const TraceSpan span(stream_, TimeCategory::kEvaluation, "evaluate tasks");
  // Ranks put the scores together on the host, whatever they compute on.
  const bool on_host = stream_.device().type == DeviceType::kCpu;
  const MicroBatchPacker& of_losses = PackerOfLosses(packer_);
  UseCommonWeights(true);
  for (int64_t first = 0; first < source.size(); first += batch) {
    rank_progress_->Enter(Phase::kEvaluate);
    packed.consumed_samples = first;
    MEGATRON_RETURN_IF_ERROR(Pack(source, packed), _ << "while evaluating tasks");
    StepInputs inputs = InputsOf(packer_.batches(), StageMode::kEvaluate);
    inputs.token_scores_M2T = token_scores_M2T_;
    stage_->StartStep(inputs);
    MEGATRON_RETURN_IF_ERROR(
        RunSchedule(plan, stage_.get(), groups_.pipeline, &memory_->edges, stream_));
    ScoreTable table(batch, options_.packing.seq_length);
    if (token_scores_M2T_) {
      host_token_scores_.Fetch(stream_);
      for (int64_t m = 0; m < packed.micro_batches; ++m)
        table.Take(of_losses.HostBatch(m), first, host_token_scores_.host().Select(0, m));
    }
    table.Join(groups_.world, on_host ? stream_ : Stream::Inline());
    MEGATRON_RETURN_IF_ERROR(GroupStatus());
    take(first, table.losses(), table.hits());
  }
  UseCommonWeights(false);
  return GroupStatus();
}

}  // namespace megatron
