#include "megatron/train/graphs/graphed_stage.h"

#include <cstring>

#include "glog/logging.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// The number of facts that are remembered, captured or not. More would fill up with facts that come
// only once.
constexpr size_t kMostKnown = 4096;

}  // namespace

GraphedStage::GraphedStage(Stage* stage, const CudaGraphOptions& options,
                           const std::vector<SlotSizes>& slots, const MicroBatchPacker& packer,
                           Device device, MemoryLedger* ledger)
    : StageWrapper(stage),
      options_(options),
      packer_(packer),
      inputs_(slots, packer.BytesOfOne(), device, ledger) {
  for (const SlotSizes& chunk : slots) live_.emplace_back(chunk.count);
}

void GraphedStage::StartStep(int64_t kept_tokens) {
  ++steps_;
  kept_tokens_ = kept_tokens;
  batches_ = packer_.batches();
  // An evaluation may have changed what the stage remembers of the last step.
  for (std::vector<Live>& chunk : live_) {
    for (Live& live : chunk) live = Live();
  }
}

void GraphedStage::Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
                           absl::Span<const Tensor> outputs, const Stream& stream) {
  Live& live = live_[item.chunk][item.slot];
  live = Live();
  live.facts = {item.chunk, item.slot, kept_tokens_};
  AppendFacts(batches_[item.microbatch], &live.facts);
  inputs_.Copy(stream, packer_.BlockOf(item.microbatch), item.chunk, item.slot);
  Run({Kind::kForward, item, Tensors(inputs.begin(), inputs.end()),
       Tensors(outputs.begin(), outputs.end())},
      stream);
}

void GraphedStage::Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                            absl::Span<const Tensor> input_gradients, const Stream& stream) {
  Run({Kind::kBackward, item, Tensors(output_gradients.begin(), output_gradients.end()),
       Tensors(input_gradients.begin(), input_gradients.end())},
      stream);
}

void GraphedStage::BackwardWeight(const WorkItem& item, const Stream& stream) {
  Run({Kind::kBackwardWeight, item, {}, {}}, stream);
}

void GraphedStage::Run(const Pass& pass, const Stream& stream) {
  const auto& [microbatch, chunk, slot, deferred_slot] = pass.item;
  Live& live = live_[chunk][slot];
  batches_[microbatch] =
      inputs_.At(chunk, slot, packer_.batches()[microbatch], packer_.BlockOf(microbatch));
  AppendFacts(pass, &live.facts);
  Known* const known = Find(live.facts);
  if (known != nullptr && known->graph != nullptr) {
    live.stage_knows = comparison_ != nullptr;
    if (comparison_ != nullptr) Compare(pass, *known->graph, stream);
    Launch(known->graph.get(), stream);
    ++counts_.launched;
  } else {
    CatchUp(&live, stream);
    if (MayCapture(known)) {
      known->graph = std::make_unique<CudaGraph>();
      Capture(pass, stream, known->graph.get());
      ++counts_.captured;
      LOG_IF(WARNING, ++graphs_ == options_.max_graphs)
          << "there are " << graphs_
          << " CUDA graphs, the most that are kept; other passes run without";
      Launch(known->graph.get(), stream);
    } else {
      CarryOut(pass, stream);
      ++counts_.enqueued;
    }
    if (known != nullptr) ++known->runs;
  }
  live.passes.push_back(pass);
}

void GraphedStage::AppendFacts(const MicroBatch& batch, Facts* facts) const {
  for (const int64_t fact :
       {batch.num_tokens(), batch.num_sequences(), batch.max_seqlen, batch.num_samples,
        batch.encoder.num_tokens(), batch.encoder.max_seqlen, batch.spans.num_spans()}) {
    facts->push_back(fact);
  }
  if (!options_.reads_sample_weight) return;
  uint32_t weight_bits;
  static_assert(sizeof(weight_bits) == sizeof(batch.sample_weight));
  std::memcpy(&weight_bits, &batch.sample_weight, sizeof(weight_bits));
  facts->push_back(weight_bits);
}

void GraphedStage::AppendFacts(const Pass& pass, Facts* facts) {
  facts->push_back(static_cast<int64_t>(pass.kind));
  facts->push_back(pass.item.deferred_slot);
  for (const Tensors* tensors : {&pass.in, &pass.out}) {
    for (const Tensor& tensor : *tensors)
      facts->push_back(reinterpret_cast<intptr_t>(tensor.raw()));
  }
}

GraphedStage::Known* GraphedStage::Find(const Facts& facts) {
  const auto found = known_.find(facts);
  if (found != known_.end()) return &found->second;
  return known_.size() < kMostKnown ? &known_[facts] : nullptr;
}

bool GraphedStage::MayCapture(const Known* known) const {
  return known != nullptr && known->runs > 0 && steps_ > options_.warmup_steps &&
         graphs_ < options_.max_graphs;
}

void GraphedStage::CarryOut(const Pass& pass, const Stream& stream) {
  switch (pass.kind) {
    case Kind::kForward:
      return inner().Forward(pass.item, pass.in, pass.out, stream);
    case Kind::kBackward:
      return inner().Backward(pass.item, pass.in, pass.out, stream);
    case Kind::kBackwardWeight:
      return inner().BackwardWeight(pass.item, stream);
  }
}

// A trace's events cannot be part of a graph: they are read once.
void GraphedStage::Capture(const Pass& pass, const Stream& stream, CudaGraph* graph) {
  const TraceSpan span(stream, "capture");
  graph->BeginCapture(stream.cuda());
  CarryOut(pass, stream.TracedBy(nullptr));
  graph->EndCapture(stream.cuda());
}

void GraphedStage::CatchUp(Live* live, const Stream& stream) {
  if (live->stage_knows) return;
  for (const Pass& pass : live->passes) {
    CudaGraph forgotten;
    Capture(pass, stream, &forgotten);
  }
  live->stage_knows = true;
  ++counts_.caught_up;
}

void GraphedStage::Compare(const Pass& pass, const CudaGraph& graph, const Stream& stream) {
  CudaGraph now;
  Capture(pass, stream, &now);
  comparison_(graph, now);
}

void GraphedStage::Launch(CudaGraph* graph, const Stream& stream) {
  const TraceSpan span(stream, "graph", {{"operations", graph->num_operations()}});
  graph->Launch(stream.cuda());
}

}  // namespace megatron
