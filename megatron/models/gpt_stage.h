// One rank's part of a GPT: one chunk of consecutive layers, or with an interleaved schedule
// several, with the embedding in front of the model's first and the head behind its last. A model
// on one rank is a single chunk.
//
// Legend: T tokens (of the residual stream: those of this rank), H hidden, V vocabulary of this
// rank.
#ifndef MEGATRON_MODELS_GPT_STAGE_H_
#define MEGATRON_MODELS_GPT_STAGE_H_

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/moe/router_state.h"
#include "megatron/layers/rotary.h"
#include "megatron/layers/vocab_parallel_embedding.h"
#include "megatron/models/gpt_options.h"
#include "megatron/models/layer_stack.h"
#include "megatron/models/lm_head.h"
#include "megatron/models/stage_memory.h"
#include "megatron/models/token_embedding.h"
#include "megatron/models/trained_stage.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

class GptStage : public TrainedStage {
 public:
  // `device` and `ledger` are of the rotary tables, the only memory a stage owns.
  GptStage(const GptOptions& options, const StagePlacement& placement,
           const ProcessGroup& tensor_group, Device device, MemoryLedger* ledger,
           const ExpertGroups& expert_groups = {});

  std::vector<Parameter*> parameters() override;
  const StagePlacement& placement() const override { return placement_; }
  int64_t padded_vocab_size() const override { return options_.padded_vocab_size; }

  void SetContextGroup(const ProcessGroup& group) override { context_group_ = group; }
  void SetMemory(StageMemory* memory) override;
  void SetBatches(const std::vector<MicroBatch>* batches) override { batches_ = batches; }
  void SetBlocks(WeightBlocks* blocks) override { blocks_ = blocks; }
  void set_training(bool training) override { mode_ = training ? Mode::kTrain : Mode::kEvaluate; }
  void StartPredicting(int64_t token, const Tensor& logits_V) override;

  std::vector<TensorSpec> InputSpecs(int microbatch, int chunk) const override;
  std::vector<TensorSpec> OutputSpecs(int microbatch, int chunk) const override;
  void Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
               absl::Span<const Tensor> outputs, const Stream& stream) override;
  void Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                absl::Span<const Tensor> input_gradients, const Stream& stream) override;
  void BackwardWeight(const WorkItem& item, const Stream& stream) override;

  Measures measures() const override { return MeasuresOf(options_); }
  const Tensor& loss_sums() const override { return loss_sums_; }
  RouterState& router_state() override { return router_state_; }
  std::vector<MoeLayer*> moe_layers() const override;

 private:
  enum class Mode { kTrain, kEvaluate, kPredict };
  struct Saved {
    LayerStack::Saved layers;
    TokenEmbedding::Saved embedding;
    LmHead::Saved head;
  };
  struct Chunk {
    bool first = false, last = false;  // of the model's parts
    std::unique_ptr<LayerStack> layers;
    std::vector<Saved> saved;  // by slot
  };

  Chunk MakeChunk(int chunk) const;
  void MakeRouterState(Device device, MemoryLedger* ledger);
  void MakeEmbedding();
  void MakeHead(Device device, MemoryLedger* ledger);
  std::unique_ptr<VocabParallelEmbedding> MakeTable(const std::string& name, float init_std) const;

  std::vector<TensorSpec> EdgeSpecs(int microbatch) const;
  bool sequence_parallel() const;
  LayerContext Context(const WorkItem& item, const Stream& stream) const;
  const RotaryTables* rotary() const { return rotary_.get(); }
  Tensor AllocateHidden(Arena* arena, int64_t tokens, const char* name) const;
  // What the chunk's layers read: the embedding, or what the stage before sent; and where they
  // write.
  Tensor ChunkInput(const LayerContext& ctx, const Chunk& chunk, absl::Span<const Tensor> inputs,
                    TokenEmbedding::Saved* saved) const;
  Tensor ChunkOutput(const LayerContext& ctx, const Chunk& chunk,
                     absl::Span<const Tensor> outputs) const;
  void ForwardOnly(const LayerContext& ctx, const Chunk& chunk, absl::Span<const Tensor> inputs,
                   absl::Span<const Tensor> outputs);

  GptOptions options_;
  StagePlacement placement_;
  ProcessGroup tensor_group_, context_group_;
  ExpertGroups expert_groups_;
  RouterState router_state_;
  std::unique_ptr<RotaryTables> rotary_;
  // On the first stage; on the last too if it is tied, there as a copy.
  std::unique_ptr<VocabParallelEmbedding> word_embeddings_;
  std::unique_ptr<VocabParallelEmbedding> output_layer_;  // the last stage's, where not tied
  std::unique_ptr<TokenEmbedding> embedding_;             // on the first stage
  std::vector<Chunk> chunks_;
  std::unique_ptr<LmHead> head_;  // on the last stage

  Buffer loss_buffer_;
  Tensor loss_sums_;
  StageMemory* memory_ = nullptr;
  WeightBlocks* blocks_ = nullptr;
  const std::vector<MicroBatch>* batches_ = nullptr;
  Mode mode_ = Mode::kTrain;
  int64_t predicted_token_ = 0;
  Tensor predicted_logits_V_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_GPT_STAGE_H_
