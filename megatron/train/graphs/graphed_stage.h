// GraphedStage: a pipeline stage on a GPU whose passes are captured in CUDA graphs and launched
// again, each by one call of the host in place of hundreds.
//
//   GraphedStage graphed(&stage, options, slots, packer, device, &ledger);
//   graphed.StartStep(kept_tokens);            // behind packer.Pack
//   inputs.batches = &graphed.batches();
//   stage.StartStep(inputs);
//   RunSchedule(plan, &graphed, ...);
//
// A pass (forward, backward, the second part of a backward) of one micro-batch is one graph. What
// the host decides in it, the *facts*, is its key: the chunk and the slots, the numbers of the
// micro-batch that the host knows, the number of tokens that layers keep which drop some, the
// addresses of all tensors that come from and go to other stages; with experts also the weight of a
// sample, in which the loss scale is. Everything else that a step changes lies in the device's
// memory: tokens, weights and gradients, dropout's counters, the loss scale in the tokens' weights.
// A pass whose facts come for the first time, and each pass of the first steps, runs as without
// graphs, and kernels are then loaded and timed, and the workspace grows; when the facts come again
// the pass is captured.
//
// The wrapped stage remembers between the passes of a micro-batch where its tensors lie, and a
// launch does not update that. So if a pass is not launched and one before it was, the earlier
// passes are captured once more and the graphs discarded: this updates the host's side, and the
// device does nothing twice.
//
// The stage must enqueue all work of a pass on its stream and on lanes that the stream forks and
// joins (comm_stream.h), and wait for no counts on the host. Messages in a pass are those of
// tensor-, context- and expert-parallel ranks, which must have the same facts in the same order: so
// all of them capture the same passes and launch them in one order, as NCCL demands.
//
// Threads: one.
#ifndef MEGATRON_TRAIN_GRAPHS_GRAPHED_STAGE_H_
#define MEGATRON_TRAIN_GRAPHS_GRAPHED_STAGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/models/stage_memory.h"
#include "megatron/pipeline/stage_wrapper.h"
#include "megatron/tensor/cuda_graph.h"
#include "megatron/train/batches/micro_batch_packer.h"
#include "megatron/train/graphs/graph_inputs.h"

namespace megatron {

struct CudaGraphOptions {
  bool enabled = false;
  int64_t warmup_steps = 3;  // number of first steps that run without graphs
  // The limit on graphs: a pass whose facts are hardly ever the same would fill the memory with
  // them.
  int64_t max_graphs = 256;
  // Whether passes read the weight of a sample, which the losses of routers are multiplied by.
  bool reads_sample_weight = false;
};

class GraphedStage : public StageWrapper {
 public:
  // Numbers of passes that were enqueued, captured, and so on.
  struct Counts {
    int64_t enqueued = 0, captured = 0, launched = 0, caught_up = 0;
  };
  // Compares a graph that is to be launched with the same pass captured now.
  using Comparison = std::function<void(const CudaGraph& graph, const CudaGraph& now)>;

  // All must outlive this. `slots` holds the slots of the stage's memory, by chunk.
  GraphedStage(Stage* stage, const CudaGraphOptions& options, const std::vector<SlotSizes>& slots,
               const MicroBatchPacker& packer, Device device, MemoryLedger* ledger);

  // The step's micro-batches, for the wrapped stage.
  const std::vector<MicroBatch>& batches() const { return batches_; }
  // `kept_tokens` is that of the step's StepInputs.
  void StartStep(int64_t kept_tokens = 0);

  // Sets a function that is called before each launch, for tests; graphs then save nothing.
  void set_comparison(Comparison comparison) { comparison_ = std::move(comparison); }
  const Counts& counts() const { return counts_; }

  void Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
               absl::Span<const Tensor> outputs, const Stream& stream) override;
  void Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                absl::Span<const Tensor> input_gradients, const Stream& stream) override;
  void BackwardWeight(const WorkItem& item, const Stream& stream) override;

 private:
  using Tensors = absl::InlinedVector<Tensor, 4>;
  using Facts = std::vector<int64_t>;
  enum class Kind { kForward, kBackward, kBackwardWeight };
  struct Pass {
    Kind kind;
    WorkItem item;
    Tensors in, out;
  };
  // A micro-batch in a slot.
  struct Live {
    // The facts of all its passes so far: a pass depends on where those before put things.
    Facts facts;
    std::vector<Pass> passes;
    bool stage_knows = true;  // the wrapped stage has carried them all out itself
  };
  struct Known {
    int64_t runs = 0;
    std::unique_ptr<CudaGraph> graph;  // null: not captured
  };

  void Run(const Pass& pass, const Stream& stream);
  void AppendFacts(const MicroBatch& batch, Facts* facts) const;
  static void AppendFacts(const Pass& pass, Facts* facts);
  Known* Find(const Facts& facts);  // null: there are too many
  bool MayCapture(const Known* known) const;
  void CarryOut(const Pass& pass, const Stream& stream);
  void Capture(const Pass& pass, const Stream& stream, CudaGraph* graph);
  void CatchUp(Live* live, const Stream& stream);
  void Compare(const Pass& pass, const CudaGraph& graph, const Stream& stream);
  void Launch(CudaGraph* graph, const Stream& stream);

  const CudaGraphOptions options_;
  const MicroBatchPacker& packer_;
  const GraphInputs inputs_;
  std::vector<MicroBatch> batches_;
  int64_t kept_tokens_ = 0;
  std::vector<std::vector<Live>> live_;  // micro-batches by chunk and slot
  std::map<Facts, Known> known_;
  int64_t steps_ = 0, graphs_ = 0;
  Comparison comparison_;
  Counts counts_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_GRAPHS_GRAPHED_STAGE_H_
