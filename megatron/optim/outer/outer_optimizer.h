// DiLoCo's outer optimizer (A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of
// Language Models", arXiv 2311.08105).
//
// Islands (comm/island_groups.h) train apart. Each has all master weights w; every `sync_every`
// steps the islands agree on new ones. Each rank does so for its optimizer range, with the ranks
// that have the same range in the other islands:
//
//   d = mean over islands of (global - w)              the outer gradient
//   v = momentum * v + d                               0 at first, as torch.optim.SGD has it
//   global -= lr * (d + momentum * v), or without Nesterov lr * v
//   w = global
//
// Streaming DiLoCo (A. Douillard et al., arXiv 2501.18512) cuts the parameters into *fragments*,
// which take turns: each has its outer step every `sync_every` steps, at its own of them. What the
// islands send each other for a fragment after step t may be applied after step t + sync_delay, and
// steps go on meanwhile. Then the last line is w = alpha * w + (1 - alpha) * global, with the w of
// that step.
//
// The inner optimizer's states are neither averaged nor reset. With lr 1 and momentum 0 the new
// weights are the mean of the islands' weights: FedAvg's, or those of local SGD.
//
// The global copy and v are fp32. The outer gradient is formed in the memory of the gradients,
// which are lost; with a delay a thread sends it from host memory. Sums over islands have the order
// of islands, so that all ranks get the same bits.
//
// Islands send each other their global - w in fp32, or in codes of fewer bits (outer_codec.h), each
// island all of its codes to each other. The codes are rounded once, and their values summed in
// fp32. The processor does this, wherever the weights are. Codes of an element depend on those
// around it, which are others on each tensor-parallel rank: the first one sends the others its sums
// of what they hold alike.
#ifndef MEGATRON_OPTIM_OUTER_OUTER_OPTIMIZER_H_
#define MEGATRON_OPTIM_OUTER_OUTER_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "megatron/comm/overlap/comm_lane.h"
#include "megatron/comm/process_groups.h"
#include "megatron/optim/outer/outer_codec.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

struct OuterOptimizerOptions {
  // Number of steps from one outer step of a fragment to its next; 0: there are none.
  int64_t sync_every = 0;
  double lr = 0.7;
  double momentum = 0.9;
  bool nesterov = true;
  OuterGradientType gradient_type = OuterGradientType::kFloat32;
  int num_fragments = 1;    // divides sync_every
  int64_t sync_delay = 0;   // less than sync_every / num_fragments, so that one is sent at a time
  double update_alpha = 0;  // the part of the island's own weights in what they become
  // The number of the run's last step, which joins the islands: all fragments have an outer step
  // without delay, and the weights become the global copy. 0: there is no such step.
  int64_t last_step = 0;
  // Whether the outer steps are made elsewhere, from what FormUpdate forms: the momentum is there,
  // and there are no fragments. There is one island in this world, and FinishStep is not called.
  bool elsewhere = false;

  bool enabled() const { return sync_every > 0; }
};

// Returns the fragment of a parameter: its layer's number modulo the number of fragments.
// Embeddings are in the first, and what belongs to no layer and comes behind them is in the last.
int FragmentOf(const std::string& parameter, int num_fragments);

class OuterOptimizer {
 public:
  // `groups` are those of the whole run, whose replicas are the islands. Masters and states of the
  // buffers, which must outlive this, are on their device.
  OuterOptimizer(const OuterOptimizerOptions& options, const ProcessGroups& groups,
                 ParameterBuffers* buffers, MemoryLedger* ledger);

  // Makes the thread that sends with a delay, if there is one. Called once before any outer step.
  // Collective over islands.
  absl::Status PrepareLane(const Stream& compute);

  int islands() const { return groups_.data_context_replicas.size(); }
  int island() const { return groups_.data_context_replicas.rank(); }
  // Begins from the masters, which are the same in all islands: they are the global copy, and there
  // is no momentum.
  void Start(const Stream& stream);
  // Does what follows so many steps: applies what was sent, and begins or makes the outer step of
  // the fragment whose turn it is. Returns whether masters have changed; then they are rounded to
  // the weights of the optimizer range. The gradients are undefined then. Collective over islands.
  bool FinishStep(int64_t iteration, const Stream& stream);
  // Makes an outer step of all fragments without delay, which become the global copy. Nothing is in
  // flight.
  void Step(const Stream& stream);
  // Forms what this island adds to an outer step that is made elsewhere: the gradients of the
  // optimizer range become global - masters.
  void FormUpdate(const Stream& stream) const;
  // The gradients, which are a new global copy, become this one and the masters, and are rounded to
  // the weights.
  void TakeCopy(const Stream& stream);
  // Exchanges the masters and the global copy, and rounds the masters to the weights. The gradients
  // are undefined then.
  void SwapWithMasters(const Stream& stream);

  // Elements `range` of a bucket, which are in this rank's optimizer range.
  Tensor Global(const Bucket& bucket, const FlatRange& range) const;
  Tensor Momentum(const Bucket& bucket, const FlatRange& range) const;
  bool has_momentum() const { return options_.momentum != 0 && !options_.elsewhere; }

  // What was sent after a step and is not applied yet.
  struct InFlight {
    int fragment = -1;  // none
    int64_t iteration = 0;
  };
  const InFlight& in_flight() const { return in_flight_; }
  // Waits until the sums over islands of the fragment in flight are there.
  void WaitForSums() const;
  // These sums for elements `range` of a parameter of the fragment in flight, in host memory.
  Tensor Sums(const Bucket& bucket, const FlatRange& range) const;
  // Begins with a fragment in flight, whose sums the caller writes. There is a delay.
  void Resume(const InFlight& in_flight);

  const OuterOptimizerOptions& options() const { return options_; }
  // All memory of this, for mirrors.
  std::vector<Tensor> tensors() const;

 private:
  // Elements of a bucket that are of one fragment, and their place among the fragment's.
  struct Piece {
    const Bucket* bucket = nullptr;
    FlatRange range;
    int64_t at = 0;
  };

  void PlanPieces();
  const ProcessGroup& IslandsOf(const Bucket& bucket) const;
  Tensor Part(const Buffer& buffer, const Bucket& bucket, const FlatRange& range) const;
  Tensor Sums(const Piece& piece) const;
  // Forms what this island sends: the gradients become global - masters.
  void FormGradient(const Piece& piece, const Stream& stream) const;
  // Makes the sums of codes, which are in the gradients, those of the first tensor-parallel rank
  // where all of these hold the same elements.
  void KeepAlike(const Piece& piece, const Stream& stream) const;
  // Makes of the sum over islands, which is in the gradients, the new masters and the global copy.
  void Apply(const Piece& piece, double alpha, const Stream& stream) const;
  void ApplyPart(const Bucket& bucket, const FlatRange& range, double alpha,
                 const Stream& stream) const;
  void StepFragment(int fragment, double alpha, const Stream& stream) const;
  void Send(int fragment, int64_t iteration, const Stream& stream);
  void Receive(double alpha, const Stream& stream);
  // gradient = the sum over islands.
  void Sum(const ProcessGroup& islands, const Tensor& gradient, const Stream& stream) const;
  bool sends_codes() const {
    return islands() > 1 && options_.gradient_type != OuterGradientType::kFloat32;
  }
  // gradient = the sum over islands of what the codes of their gradients say.
  void SumCodes(const ProcessGroup& islands, const Tensor& gradient, const Stream& stream) const;

  const OuterOptimizerOptions options_;
  const ProcessGroups groups_;
  ParameterBuffers* const buffers_;
  std::vector<int64_t> positions_;  // where the optimizer range of each bucket begins
  int64_t elements_ = 0;
  Buffer global_, momentum_;
  // Memory of the host for a piece of the gradients: the codes of this island, behind them those of
  // all islands; the values of one island, and the sum.
  int64_t piece_elements_ = 0;
  Buffer codes_, values_;
  std::vector<std::vector<Piece>> fragments_;
  Buffer local_;  // masters that are merged, at most kMostPieceElements of them
  // Host memory for the fragment in flight, and the groups of the thread that sends it.
  Buffer sums_;
  InFlight in_flight_;
  int64_t job_ = 0;
  ProcessGroup lane_islands_, lane_expert_islands_;
  std::unique_ptr<CommLane> lane_;  // last, since its jobs use the others until it has ended
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_OUTER_OUTER_OPTIMIZER_H_
