// Trains a tiny model on any layout, with threads as ranks, for tests; gathers the results from all
// ranks, and moves checkpoints between layouts.
#ifndef MEGATRON_TRAIN_LAYOUTS_LAYOUT_HARNESS_H_
#define MEGATRON_TRAIN_LAYOUTS_LAYOUT_HARNESS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "megatron/comm/counted_communicator.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/comm/rank_order.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/data/sample.h"
#include "megatron/train/metrics/diagnostic_values.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

struct Layout {
  int tensor = 1, context = 1, pipeline = 1, data = 1;
  // Where not 1, the tensor-parallel ranks form squares of this side, or a cube.
  int tensor_side = 1, tensor_depth = 1;
  bool tensor_cube = false;
  ContextParallel context_parallel = ContextParallel::kRing;
  int context_team_size = 1;  // ranks of a team of kHierarchical
  int expert = 1;             // ranks with different experts
  int expert_tensor = 1;      // ranks with parts of the same experts
  int chunks = 1;             // parts of the model on each pipeline rank
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  std::vector<int64_t> layers;   // number of layers of each part of the model; empty: even
  bool mtp_before_last = false;  // StagePlacement::mtp_before_last
  bool sequence_parallel = false;
  bool tp_comm_overlap = false;
  DataSharding sharding = DataSharding::kNone;
  int optimizer_instances = 1;
  bool shards_states_over_instances = false;
  int ranks_per_host = 0;  // for hierarchical collectives; 0: none are
  bool deduplicated_dispatch = false;
  int hosts = 1;         // several have secondary shards
  bool overlap = false;  // overlaps gradient reduction and weight gathering
  int64_t micro_batch_size = 1;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kMesh;
  RankOrder order;

  int ranks() const { return tensor * context * pipeline * data; }
};
std::string ToString(const Layout& layout);
ParallelSizes SizesOf(const Layout& layout, bool has_experts);

// Samples that can be learned, and how often each was read.
class CountingSource : public SampleSource {
 public:
  static constexpr int kLength = 16;

  // If samples have documents, attention and positions begin anew at up to two places of a sample.
  explicit CountingSource(bool documents = false) : documents_(documents) {}

  int64_t size() const override { return kSize; }
  absl::Status Get(int64_t index, Sample* sample) const override;
  int reads(int64_t index) const { return reads_[index]; }

 private:
  static constexpr int kSize = 1 << 10;
  const bool documents_;
  mutable std::array<std::atomic<int>, kSize> reads_{};
};

// Texts that count up, whose every third token the decoder has to predict: for models with an
// encoder.
class GapSource : public SampleSource {
 public:
  int64_t size() const override { return 1 << 10; }
  absl::Status Get(int64_t index, Sample* sample) const override;
};

// Two pieces of 1 to 7 tokens, which count up; swapped in every other sample. Some are masked: for
// BERT.
class PairSource : public SampleSource {
 public:
  int64_t size() const override { return 1 << 10; }
  absl::Status Get(int64_t index, Sample* sample) const override;
};

// The samples of `Source`, which come from four sources: the third has few, and the fourth none.
template <typename Source>
class SeveralSources : public Source {
 public:
  static constexpr int kSources = 4;
  using Source::Source;

  int SourceOf(int64_t index) const override {
    return index % 11 == 10 ? 2 : static_cast<int>(index * index % 5 % 2);
  }
};

// Options of a run of `model` with batches of 8 samples, but for what the layout decides.
TrainerOptions TinyRun(const ModelOptions& model, OptimizerOptions::Kind optimizer);

// A whole tensor: its shape, and the bits of its elements in the model's or the optimizer's type,
// row-major.
struct WholeTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::string bytes;
  friend bool operator==(const WholeTensor& a, const WholeTensor& b) {
    return a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes;
  }
};

inline bool operator==(const SourceLoss& a, const SourceLoss& b) {
  return a.source == b.source && a.sum == b.sum && a.weight == b.weight;
}

struct LayoutRun {
  Layout layout;
  int steps = 0;
  std::string load, save;  // directories of checkpoints; empty: none
  bool evaluate = false;
  bool update_ahead = true;              // whether each step begins with Trainer::UpdateAhead
  int eval_interval = 0;                 // steps between evaluations during training; 0: none
  const SampleSource* scored = nullptr;  // whose tokens are scored after training; null: none are
  const LossScaler* scaler = nullptr;    // null: a constant 1
  // A function that is called before each launch of a CUDA graph.
  GraphedStage::Comparison compare_graphs;
  DeviceType device = DeviceType::kCpu;  // kCuda: all ranks share device 0
  int ranks_of_host = 0;                 // TrainerOptions::host follows from it; 0: all
  // If set, wraps each rank's communicator.
  std::function<std::shared_ptr<Communicator>(std::shared_ptr<Communicator>)> wrap;
  // If set, are called on each rank's thread: when weights were initialized, and after the last
  // step.
  std::function<absl::Status(int rank, Trainer*trainer)> at_start, at_end;
  // If set, is called before each piece of work of a rank, on its thread.
  std::function<void(int rank, Phase phase, ParameterBuffers* buffers)> on_piece;
};

struct LayoutOutcome {
  std::vector<double> losses, norms;
  // The part of the elements of gradients that ranks sent, where it depends on the gradients.
  std::vector<double> sent_gradients;
  // The router's losses, for models with experts.
  std::vector<double> balances, z_losses;
  // Smallest difference between the score of what a router on the CPU chose or kept and the score
  // of what it did not.
  double smallest_margin = 1;
  double evaluation = 0;
  std::vector<float> token_losses, token_hits;  // those of LayoutRun::scored
  std::vector<double> lm_losses;
  std::vector<std::vector<SourceLoss>> sources;  // with TrainerOptions::num_sources
  std::vector<DiagnosticValues> diagnostics;     // those of each step
  std::vector<StepFinding> reruns;               // likewise
  GraphedStage::Counts graphs;                   // counts of the first rank
  // The first rank's bytes by kind at its peak, and what it sent in its steps.
  std::map<std::string, int64_t> memory;
  std::shared_ptr<BytesSent> sent = std::make_shared<BytesSent>();
  // All that a checkpoint holds, by name: weights and optimizer state.
  std::map<std::string, WholeTensor> state;
};

// Fails where a run that stops half-way and continues on the same layout is not the run without a
// stop, bit for bit, or where one of the layouts takes something else from what the run has saved.
void ExpectThatCheckpointsMove(const TrainerOptions& run, int steps,
                               const std::vector<Layout>& layouts);

// Trains on threads. Fails the test if ranks disagree, if a rank's memory is not what was planned,
// or if an element is held by no rank or by two.
LayoutOutcome TrainOnLayout(const TrainerOptions& run, const LayoutRun& how,
                            const SampleSource& source);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_LAYOUTS_LAYOUT_HARNESS_H_
