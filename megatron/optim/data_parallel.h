// What the ranks that hold the same parameters do together: gradients are reduced, weights that one
// rank updated are sent to the others, and what is sharded is whole only while it is used.
//
//   DataParallel parallel(...);   // StepInputs::blocks of a stage
//   parallel.StartStep(micro_batches);
//   ... forward and backward of every micro-batch, by a stage that uses WeightBlocks ...
//   parallel.FinalizeGradients();
//   optimizer.Step(...);
//   parallel.ShareWeights();
//
// A unit is what is sent at once: a block (Parameter::block), or several (flat_layout.h). With
// overlap, a thread of this rank, or on a GPU a stream of its own, sends while the stage computes:
// gradients of a unit from its last gradient on, weights from the step's end on, or where they are
// sharded while the block before is used. Without, the same is sent by the caller. Sums are the
// same numbers in the same order either way.
//
// Where gradients are sharded a block's are whole during its backward of one micro-batch; then they
// are summed over ranks, each of which adds its part to what it has of earlier micro-batches. A
// stage that does not use WeightBlocks may neither overlap nor shard gradients and weights.
//
// All ranks call all methods in the same order. Threads: one.
#ifndef MEGATRON_OPTIM_DATA_PARALLEL_H_
#define MEGATRON_OPTIM_DATA_PARALLEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/process_groups.h"
#include "megatron/optim/block_pool.h"
#include "megatron/optim/comm_lane.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

struct DataParallelOptions {
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  // Gradients are rounded to bf16, summed in fp32 and rounded once more.
  bool grad_reduce_in_bf16 = false;
};

// Bytes of what is whole for a while, at the most.
struct WholeBlockSizes {
  int64_t weights = 0, gradients = 0;
};

class DataParallel : public WeightBlocks {
 public:
  // Collective over the groups. The buffers outlive it. Sizes are read on real devices alone.
  static absl::StatusOr<std::unique_ptr<DataParallel>> Create(
      const DataParallelOptions& options, const ProcessGroups& groups, const WholeBlockSizes& sizes,
      ParameterBuffers* buffers, const Stream& stream, MemoryLedger* ledger);
  ~DataParallel() override;

  // Zeroes the gradients. `micro_batches` is how often each block's gradients will end.
  void StartStep(int64_t micro_batches);
  // Makes every gradient that is held here the gradient of the whole batch: sums over data-parallel
  // and context ranks, over the axes in which a parameter is `partial`, and over the copies of tied
  // weights. The others, those of copies and of other ranks' parts, then hold anything.
  void FinalizeGradients();
  // Sends weights from where they are optimized to where else they are stored: to copies of tied
  // weights, and to the other data-parallel ranks where states are sharded and weights are not.
  void ShareWeights();

  void Acquire(int block, int next) override;
  void Release(int block) override;
  void BeginGradients(int block) override;
  void EndGradients(int block) override;

  // Of the pools, so far.
  WholeBlockSizes HighWater() const;

 private:
  enum JobKind { kReduce, kGather };
  struct Unit {
    int blocks = 0;
    std::vector<const Bucket*> buckets;
    int64_t elements = 0;
    int users = 0;  // of weights that were gathered for them
    bool gathered = false;
    bool reduced = false;
    int64_t gather_job = 0;
    int64_t ends = 0;  // of gradients, in this step
    // Whole, where sharded: the elements of all buckets, one behind the other.
    PooledTensor weights, gradients;
    PooledTensor rounded;  // the gradients, while they are reduced in bf16
  };
  struct InFlight {
    int unit;
    int64_t job;
  };

  DataParallel(const DataParallelOptions& options, const ProcessGroups& groups,
               const ProcessGroups& worker_groups, const WholeBlockSizes& sizes,
               ParameterBuffers* buffers, const Stream& stream, MemoryLedger* ledger);

  const ProcessGroup& GroupOf(const ProcessGroups& groups, const Bucket& bucket) const {
    return bucket.section == Section::kExperts ? groups.expert_data : groups.data_context;
  }
  bool gathers_weights() const { return buffers_->shards(DataSharding::kWeights); }
  bool keeps_gradient_parts() const { return buffers_->shards(DataSharding::kGradients); }

  // Does the job, or has it done.
  int64_t Submit(JobKind kind, int unit, bool overlap);
  void Run(JobKind kind, int unit, const ProcessGroups& groups, const Stream& stream);
  void Reduce(const Unit& unit, const ProcessGroups& groups, const Stream& stream) const;
  void ReduceBucket(const Bucket& bucket, const Tensor& whole, const Tensor& rounded,
                    const ProcessGroup& group, const Stream& stream) const;
  void Gather(const Unit& unit, const ProcessGroups& groups, const Stream& stream) const;

  void StartReduce(int unit);
  // Waits until at most so many reductions are under way, and frees what the others used.
  void LimitReductions(size_t most);
  void StartGather(int unit);
  void BindWeights(const Unit& unit, const Tensor& whole) const;
  void BindGradients(const Unit& unit, const Tensor& whole) const;
  void SumPartialGradient(const ParameterPlace& place) const;

  DataParallelOptions options_;
  ProcessGroups groups_, worker_groups_;
  ParameterBuffers* buffers_;
  Stream stream_;
  ThreadPool worker_pool_{1};
  std::vector<Unit> units_;
  BlockPool weights_pool_, gradients_pool_;
  int64_t micro_batches_ = 0;
  std::vector<InFlight> reductions_;  // in order
  std::unique_ptr<CommLane> lane_;    // last: it uses the others until it has ended
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_DATA_PARALLEL_H_
