// Predicts the time and the memory of a training step from hardware, program, model and layout.
//
// Products take FLOPs over the measured share of the peak where the GPU's table has such a shape;
// else over a constant share, and bytes of the operands over the memory's rate. Other kernels take
// bytes. A collective takes a latency and its bytes over the slowest link that it crosses, of which
// the groups that run beside it take their share. The last stage has the head besides its layers.
// docs/planning.md has the formulas and the errors.
#ifndef MEGATRON_PLAN_STEP_PREDICTION_H_
#define MEGATRON_PLAN_STEP_PREDICTION_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/plan/hybrid_layers.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/tensor_grid_traffic.h"

namespace megatron {

enum class PlanRecompute { kNone, kSelective, kFull };
enum class PlanPrecision { k32Bits, k16Bits, kFp8, kFp4 };

// How attention reaches the keys and values of other context-parallel ranks.
enum class PlanContext {
  kRing,      // they go around
  kAllToAll,  // ranks exchange their tokens for heads
  kGather,    // each rank gathers all of them
  kTeams,     // exchanges within teams of neighbours, rings between teams
};

// What tensor-parallel ranks do with a matrix that Muon updates and that is cut for them.
enum class PlanMuonMode { kBlockwise, kDuplicated, kDistributed };

enum class PlanSchedule {
  kOneForwardOneBackward,  // interleaved with several chunks
  kZeroBubbleH1,           // weights' gradients are put off; one chunk
  kZeroBubbleV,            // the same with two chunks, of which the first stage has both ends
  kGPipe,                  // all forward passes before the backward passes; one chunk
};

// The form in which gradients are summed over data-parallel ranks, or between instances, in fewer
// bytes (docs/gradient_compression.md): all elements in codes of 8 bits, a part `density` of them
// with their places, or matrices of low rank in place of those where they have fewer elements by
// more than a factor of `least_gain`.
struct PlanCompression {
  enum Form { kNone, kCodes, kLargest, kLowRank };
  Form form = kNone;
  double density = 0;
  double rank = 1;
  double least_gain = 2;
};

// Tensor-parallel ranks are neighbours, then context-, data- and pipeline-parallel ones. An
// expert is cut for neighbours, and experts lie on the next ranks.
struct PlanLayout {
  // Pipeline-parallel ranks come before data-parallel ones.
  bool data_is_outermost = false;
  int64_t tp = 1;
  PlanGrid grid;  // that of the tensor-parallel ranks
  int64_t cp = 1;
  PlanContext context = PlanContext::kRing;
  int64_t cp_team = 1;  // ranks of a team of kTeams
  int64_t pp = 1;
  int64_t vpp = 1;  // chunks of a pipeline stage
  // Layers of the first and of the last of the pp * vpp parts of the model, of which the others
  // have equally many; kAsOthers: as many as they.
  static constexpr int64_t kAsOthers = -1;
  int64_t first_layers = kAsOthers;
  int64_t last_layers = kAsOthers;
  // Stages that an encoder's layers have for themselves, evenly, as the others have the rest; 0:
  // parts have equally many layers, wherever the encoder ends.
  int64_t encoder_stages = 0;
  PlanSchedule schedule = PlanSchedule::kOneForwardOneBackward;
  int64_t ep = 1;
  int64_t etp = 1;  // ranks that each expert is cut for
  int64_t dp = 1;
  int64_t micro_batch = 1;
  int64_t micro_batches = 1;  // one rank's in a step
  int64_t sequence = 0;
  PlanRecompute recompute = PlanRecompute::kNone;
  PlanPrecision precision = PlanPrecision::k16Bits;
  bool is_sequence_parallel = false;
  // Products of the forward pass are cut into pieces, beside which tensor-parallel ranks
  // communicate (layers/tensor_overlap.h).
  bool overlaps_forward = false;
  bool shards_parameters = false;  // as FSDP does
  bool shards_gradients = false;   // as ZeRO-2 does, of which memory is that of ZeRO-1 here
  // Runs of ranks with the same weights that each have all shards (HSDP), and whether they share
  // the optimizer's states.
  int64_t instances = 1;
  bool shards_states_over_instances = false;
  // DiLoCo: the instances are islands that send each other outer gradients every so many steps; 0:
  // they are not. An element is 32 bits, or a code of so many bytes with its scale.
  int64_t sync_every = 0;
  double outer_code_bytes = 0;
  // Data-parallel ranks on the same one of hosts of so many neighbours communicate with each other
  // first (hierarchical collectives); 0: with all at once.
  int64_t ranks_per_host = 0;
  // A token's row goes to each of these hosts that has experts of it once, and to the experts
  // within it (docs/experts.md).
  bool deduplicates_dispatch = false;
  // ZeRO++, where parameters are sharded: the number of hosts that each have all weights in
  // secondary shards (1: none has), weights in codes of 8 bits, gradients in codes of 4.
  int64_t hosts = 1;
  bool quantizes_weights = false;
  bool quantizes_gradients = false;
  // Not where a micro-batch's gradients are shared out in one instance, nor with islands.
  PlanCompression compression;
  // Tokens of a chunk of attention, and of an MLP; 0: all are computed at once. Attention's tensors
  // of all tokens may lie in host memory.
  int64_t attention_chunk = 0;
  bool attention_chunks_on_host = false;
  int64_t mlp_chunk = 0;
  // Tokens of which a rank has logits at once; 0: all. Times don't depend on it here.
  int64_t logits_chunk = 0;
  // Newton-Schulz steps of Muon, which updates the matrices of layers; 0: AdamW updates all.
  int64_t muon_steps = 0;
  PlanMuonMode muon_mode = PlanMuonMode::kBlockwise;
  bool muon_in_16_bits = true;  // its products
  bool muon_splits_qkv = true;
  bool is_lamb = false;  // LAMB updates all parameters
  // QK-clip: the largest scores of attention are found in each step.
  bool clips_scores = false;
  bool drops_tokens = false;  // experts have as many rows as their capacity
  // The part of the optimizer's states and main weights that lies in host memory, where the
  // processor updates it.
  double host_fraction = 0;
  // host_fraction lies in files on the host's disk, and passes through its memory. A disk that
  // isn't known (KnowsDisk) is taken to be as fast as need be.
  bool states_in_files = false;
  // Weights and gradients lie in host memory, and are on the GPU while they are used; host_fraction
  // is 1 then.
  bool weights_on_host = false;
  // What layers keep between their passes lies in host memory meanwhile: that of all layers.
  bool activations_on_host = false;

  int64_t gpus() const { return tp * cp * pp * dp; }
  // How far a stage's rank is from that of the next stage.
  int64_t pipeline_stride() const { return data_is_outermost ? tp * cp : tp * cp * dp; }
  // The ranks that share out a weight.
  int64_t weight_ranks() const { return grid.is_grid() ? grid.weight_ranks() : tp; }
  // Whether tensor-parallel ranks share out what lies between layers.
  bool shares_rows() const { return is_sequence_parallel || grid.is_grid(); }
};

// Returns whether the time of files on the hardware's disk can be predicted.
inline bool KnowsDisk(const Hardware& hardware) {
  return hardware.disk_read_gb_per_s() > 0 && hardware.disk_write_gb_per_s() > 0;
}

// Returns whether tensor-parallel ranks that form no grid share out rows where nothing says so.
inline bool AssumesSequenceParallel(const Implementation& program, int64_t tp) {
  return tp > 1 && program.is_fused();
}

// Returns the bytes of the largest scores that QK-clip finds: 32 bits for each head and layer.
inline double ScoreBytes(const PlanModel& model) {
  return 4 * double(model.layers()) * model.heads();
}

// Seconds of one step. The parts add up to `total`.
struct StepSeconds {
  double compute = 0;  // that of the stage that works most, recomputation included
  double tensor_parallel = 0;
  double context_parallel = 0;
  double expert_parallel = 0;
  double messages = 0;  // between pipeline stages
  double bubble = 0;
  double data_parallel = 0;
  double host_link = 0;  // for weights that come from host memory, and gradients that go there
  double optimizer = 0;
  double constant = 0;
  double total = 0;
};

// What the time of data parallelism depends on besides the layout: the parameters of a rank of the
// slowest stage, and the seconds of a micro-batch beside which it may run.
struct DataParallelWork {
  double parameters = 0;
  double expert_parameters = 0;
  double window = 0;
  // The elements that are summed in their place with matrices of low rank.
  double low_rank_parameters = 0;
  double low_rank_expert_parameters = 0;
  // The layers and tables that have them, and the layers that have experts.
  double layers = 1;
  double mixtures = 1;
};

struct StepPrediction {
  StepSeconds seconds;
  DataParallelWork data;
  double model_flops = 0;       // one GPU's in a step
  double memory_bytes = 0;      // the most that any rank holds
  double host_bytes = 0;        // the most that any rank has in host memory
  double total_parameters = 0;  // the whole model's
};

// Returns kInvalidArgument with what can't be: a size below 1, layers that the stages don't divide,
// sizes that tensor-parallel ranks can't share out evenly, experts that their ranks don't divide, a
// precision that the GPU doesn't have, states in host memory of unknown rates.
absl::StatusOr<StepPrediction> PredictStep(const Hardware& gpu, const Implementation& program,
                                           const MeasuredKernels& kernels, const PlanModel& model,
                                           const PlanLayout& layout);

// Returns the seconds for which a step waits for data-parallel ranks: those that PredictStep() has
// for ranks which each have a core.
double DataParallelSeconds(const Hardware& gpu, const Implementation& program,
                           const PlanLayout& layout, const DataParallelWork& work);

// Seconds of one micro-batch in one part of the model.
struct PartSeconds {
  double forward = 0;  // recomputation is a part of backward_input
  double backward_input = 0;
  double backward_weight = 0;
  // Collectives, which the three do not have: those of forward and backward.
  double forward_calls = 0;
  double backward_calls = 0;
  // The same collectives by axis.
  double tensor = 0;
  double context = 0;
  double expert = 0;
};

// The layers of one part of the model.
struct PartLayers {
  int64_t dense = 0;
  int64_t mixtures = 0;
  int64_t encoders = 0;     // those of an encoder
  BranchCounts branches{};  // those of a hybrid model, which has no others
  // The numbers of those of them that are only run forward, because nothing in front is trained.
  int64_t forward_dense = 0;
  int64_t forward_mixtures = 0;
  int64_t forward_encoders = 0;
  BranchCounts forward_branches{};
  // The part of the other layers' products with weights whose weights' gradients are computed, and
  // that of the head.
  double weights = 1;
  double head_weights = 1;
};

struct PredictedParts {
  std::vector<PartSeconds> positions;  // the last has the head besides
  double message = 0;                  // seconds of a message between stages
};

// Returns the seconds from which PredictStep() makes a step, for any split of the layers.
// `positions` has pp * vpp entries. The errors are those of PredictStep().
absl::StatusOr<PredictedParts> PredictParts(const Hardware& gpu, const Implementation& program,
                                            const MeasuredKernels& kernels, const PlanModel& model,
                                            const PlanLayout& layout,
                                            const std::vector<PartLayers>& positions);

// Returns how long the slowest of equal stages is idle with ZB-H1, whose passes take so many
// seconds: it begins when forward passes have come to it, and weights' gradients fill its pauses
// as far as they go.
inline double ZeroBubbleH1Idle(double forward, double backward_input, double backward_weight,
                               int64_t stages, int64_t micro_batches) {
  const int64_t missing = std::max<int64_t>(0, stages - micro_batches);
  return double(stages - 1) * (forward + std::max(0.0, backward_input - backward_weight)) +
         double(missing) * std::min(backward_input, backward_weight);
}

// Returns about how long a stage is idle with ZB-V, whose passes take so many seconds: half of a
// forward pass fills the pipeline. Where passes differ much, as with recomputation, it may be idle
// for much longer.
inline double ZeroBubbleVIdle(double forward, double backward_input, double backward_weight,
                              int64_t stages) {
  return double(stages - 1) * (forward + std::max(0.0, backward_input - backward_weight)) / 2;
}

}  // namespace megatron

#endif  // MEGATRON_PLAN_STEP_PREDICTION_H_
