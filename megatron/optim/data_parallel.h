// The communication of ranks that hold the same parameters: gradients are reduced, weights that one
// rank updated are sent to the others, and sharded tensors are whole only while they are used.
//
//   DataParallel parallel(...);   // StepInputs::blocks of a stage
//   parallel.StartStep(micro_batches);
//   ... forward and backward of every micro-batch, by a stage that uses WeightBlocks ...
//   parallel.FinalizeGradients();
//   optimizer.Step(...);
//   parallel.ShareWeights();
//
// A bucket group (flat_layout.h) is sent at once: one block of parameters, or several. With overlap
// a thread of this rank, or on a GPU a second stream, sends while the stage computes: the gradients
// of a bucket group as soon as the last of them is complete, and weights from the end of the step
// on, or where they are sharded while the block before is used. Without overlap the caller sends
// the same. Sums add the same numbers in the same order either way.
//
// Where gradients are sharded, the gradients of a block are whole during its backward of one
// micro-batch; then they are summed over ranks, and each rank adds its shard to its sum over
// earlier micro-batches.
//
// Shards are those of an optimizer instance (rank_grid.h). Where there are several instances,
// gradients are summed over the ranks of each, and the sums once a step over instances, shard by
// shard. Weights are gathered within an instance. Where instances share the states of a shard, each
// gets the gradients of its part alone, and the updated parts are gathered once a step.
//
// With secondary shards (hpZ of G. Wang et al., arXiv 2306.10209) the first gather of a block after
// an update of weights goes over all ranks, and each rank then keeps its part of the block among
// the ranks of its host. Later gathers, until the next update, go within the host.
//
// Gradients that are compressed (gradient_compressor.h) are summed so once a step: between
// optimizer instances where there are several, else over all ranks, where gradients are not
// sharded. With CompressionType::kOneBit they are not summed in steps of which the update rule says
// so: the optimizer averages what it makes of them through this object.
//
// Weights in host memory are copied from there to the device, and gathered if they are sharded, for
// each use; with overlap_param_gather while the block before is used. Weights in a file are read
// into host memory before that, while an earlier block is used (weight_reader.h). Gradients in host
// memory are sums over the micro-batches so far. Those of a block are whole on the device during
// its backward. Where they are sharded or rounded, the sum comes to the device then, grows by what
// backward or the reduction left, and goes back. Otherwise backward adds to the sum itself.
//
// Gradients that are kept in bf16 (ParameterBuffersOptions::main_grads_dtype) are formed block by
// block in fp32, from 0 in each micro-batch. Behind a block's backward they are added to the sum
// over the micro-batches before, and the sum is rounded to the nearest, ties to even. Where
// gradients are sharded, they are rounded and summed over ranks before that; otherwise the ranks'
// sums are summed in the end. Ranks send them in bf16.
//
// Quantized weights are gathered over all ranks as codes of 8 bits, and quantized gradients are
// reduced as codes of 4 bits (quantized_collectives.h), where weights are sharded.
//
// A table whose gradient has few rows that are not zero, and that is a bucket by itself, may be
// summed by gathering these rows (sparse_row_sum.h), with one optimizer instance and where
// gradients are not sharded.
//
// A stage that does not use WeightBlocks may neither overlap nor shard
// gradients and weights.
//
// All ranks call all methods in the same order. A DataParallel is used by one thread.
#ifndef MEGATRON_OPTIM_DATA_PARALLEL_H_
#define MEGATRON_OPTIM_DATA_PARALLEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/comm/overlap/comm_lane.h"
#include "megatron/comm/process_groups.h"
#include "megatron/optim/block_pool.h"
#include "megatron/optim/compression/gradient_compressor.h"
#include "megatron/optim/compression/sparse_row_sum.h"
#include "megatron/optim/float8_gather.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/optim/rank_average.h"
#include "megatron/optim/weight_reader.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

class GradientParts;

struct DataParallelOptions {
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  // The type in which gradients are sent. For bf16 and fp16 they are multiplied by gradient_scale
  // and rounded, summed in fp32, and the sums are rounded and divided by it.
  DType gradient_dtype = DType::kFloat32;
  float gradient_scale = 1;
  // The name of a table whose gradients are summed by their rows, and the most rows that are not
  // zero on a rank; empty: there is none. On the CPU alone, with gradients in fp32 and without
  // compression.
  std::string sparse_table;
  int64_t most_sparse_rows = 0;
  // Weights of which FP8 products need only codes are gathered as codes (float8_gather.h), where
  // weights are gathered at all; not with weights in host memory.
  bool float8_param_gather = false;
  // Keeps secondary shards over the ranks of a host, where weights are sharded.
  bool secondary_shards = false;
  // Weights that are sharded are gathered over all ranks as codes. What a rank stores stays exact;
  // what all ranks compute with are the decoded weights.
  bool quantized_weights = false;
  // Gradients are reduced as codes, where weights are sharded: within a host and then across hosts,
  // where there are several. There is one optimizer instance then.
  bool quantized_gradients = false;
  // Not with gradients in 16 bits, nor with states that are shared out over instances. Between
  // instances kPowerSgd takes the whole rows of a matrix that are in a shard as a matrix. With
  // kOneBit nothing is sharded and there are no experts' groups.
  GradientCompressionOptions compression;

  // Whether the number of elements that a rank sends depends on the gradients.
  bool sent_elements_vary() const {
    return compression.type == CompressionType::kThreshold || !sparse_table.empty();
  }
};

// The most bytes of gathered weights and of whole gradients that exist at a time.
struct WholeBlockSizes {
  int64_t weights = 0, gradients = 0;
};

// Returns which shard, and which part of it, a rank of these groups has.
DataRank DataRankOf(const ProcessGroup& shards, const ProcessGroup& replicas);

class DataParallel : public WeightBlocks, public RankAverage {
 public:
  // Collective over the groups. The buffers must outlive the object. `sizes` are HighWater() of the
  // same run on the meta device, where they are not read.
  static absl::StatusOr<std::unique_ptr<DataParallel>> Create(
      const DataParallelOptions& options, const ProcessGroups& groups, const WholeBlockSizes& sizes,
      ParameterBuffers* buffers, const Stream& stream, MemoryLedger* ledger);
  ~DataParallel() override;

  // Tells `parts`, unless it is null, of gradients before they are reduced. It must outlive this.
  void set_parts(GradientParts* parts) { parts_ = parts; }

  // Zeroes the gradients. `micro_batches` is the number of EndGradients calls for each block, and
  // `iteration` the number of steps before this one, by which compression begins. With kOneBit,
  // `own_gradients` says whether those of this step stay the ranks' own. If `gradients_read` is
  // set, a copy reads gradients until that event: they are zeroed behind it, before the first of
  // them is formed, and the passes until then do not wait.
  void StartStep(int64_t micro_batches, int64_t iteration = 0, bool own_gradients = false,
                 const CudaEvent* gradients_read = nullptr);
  // Makes the gradients of this rank's optimizer range those of the whole batch: sums over
  // data-parallel and context ranks, over the axes in which a parameter is `partial`, and over the
  // copies of tied weights. The other gradients on this rank are undefined then. Where gradients
  // are the ranks' own, the first of these sums is not done.
  void FinalizeGradients();
  // Takes back what sums of gradients that were not finite have left behind for later steps. All
  // ranks call it alike.
  void ForgetStep();
  // Says which weights float8_param_gather concerns. It is called once, before the first step.
  void SetFloat8Weights(const Float8Weights& weights, MemoryLedger* ledger);
  // Returns the largest magnitudes of those weights when they were last sent, by name; none where
  // weights are not sent as codes.
  std::map<std::string, std::vector<float>> LargestFloat8Weights() const;
  // Sends updated weights to the other ranks that store them: to copies of tied weights, and to the
  // other data-parallel ranks where states are sharded and weights are not.
  void ShareWeights();
  // Waits until weights that are being sent have arrived: they may be overwritten then.
  void WaitForWeights();

  void Acquire(int block, int next) override;
  void Release(int block) override;
  void BeginGradients(int block) override;
  void EndGradients(int block) override;
  bool keeps_weights() const override { return !fetches_weights(); }
  bool keeps_gradients() const override { return !pools_gradients(); }

  // What compresses gradients; null: nothing does.
  const GradientCompressor* compressor() const { return compressor_.get(); }

  // Whether the gradients of this step are the ranks' own.
  bool gradients_are_own() const { return compresses_ && is_one_bit(); }
  // The elements of gradients that this rank has sent in this step, and all of them, in buckets
  // where the number depends on the gradients: with kThreshold, and of the sparse table. They are
  // complete after FinalizeGradients.
  struct SentElements {
    int64_t sent = 0, all = 0;
  };
  const SentElements& sent() const { return sent_; }
  int ranks() const override { return groups_.data_context_shards.size(); }
  void Average(const Bucket& bucket, const Tensor& values, const Stream& stream) const override;
  void ForgetErrors(const Stream& stream) const override;

  // The high-water marks of the pools so far.
  WholeBlockSizes HighWater() const;

 private:
  // The last reduction of a step also sums over optimizer instances; gradients that are not sharded
  // are reduced by it alone.
  enum JobKind { kReduce, kLastReduce, kGatherShards, kGather, kGatherFromHost, kBringSum };
  struct BucketGroup {
    int blocks = 0;  // number of its blocks that have parameters to train
    std::vector<const Bucket*> buckets;
    int64_t elements = 0, trained_elements = 0;  // the second without frozen parameters
    int users = 0;  // Acquire calls without their Release, where weights are fetched
    bool gathered = false;
    // This rank's parts of the buckets among the ranks of its host, and whether they are, once the
    // jobs given so far are done, those of the present weights.
    std::vector<Tensor> secondary;
    bool has_secondary = false;
    bool reduced = false;
    bool is_first = false;  // whether its reduction is the first of the step
    int64_t gather_job = 0;
    int64_t ends = 0;  // EndGradients calls in this step
    // The whole tensors, where weights are fetched and gradients pooled: the elements of all
    // buckets, one behind the other. Gradients have none of frozen parameters.
    PooledTensor weights, gradients;
    PooledTensor rounded;  // the gradients, while they are reduced in bf16
    // Whether the sum over earlier micro-batches is on its way to `gradients`, by which job.
    bool brings_sum = false;
    int64_t sum_job = 0;
  };
  struct InFlight {
    int bucket_group;
    int64_t job;
  };

  DataParallel(const DataParallelOptions& options, const ProcessGroups& groups,
               const ProcessGroups& worker_groups, const WholeBlockSizes& sizes,
               ParameterBuffers* buffers, const Stream& stream, MemoryLedger* ledger);

  static const ProcessGroup& ShardsOf(const ProcessGroups& groups, const Bucket& bucket) {
    return HasExperts(bucket.section) ? groups.expert_data_shards : groups.data_context_shards;
  }
  static const ProcessGroup& ReplicasOf(const ProcessGroups& groups, const Bucket& bucket) {
    return HasExperts(bucket.section) ? groups.expert_data_replicas : groups.data_context_replicas;
  }
  static const ProcessGroup& AcrossHostsOf(const ProcessGroups& groups, const Bucket& bucket) {
    return HasExperts(bucket.section) ? groups.expert_data_across_hosts
                                      : groups.data_context_across_hosts;
  }
  static const ProcessGroup& HostOf(const ProcessGroups& groups, const Bucket& bucket) {
    return HasExperts(bucket.section) ? groups.expert_data_host : groups.data_context_host;
  }
  bool is_one_bit() const { return options_.compression.type == CompressionType::kOneBit; }
  bool shards_weights() const { return buffers_->shards(DataSharding::kWeights); }
  bool weights_on_host() const { return buffers_->options().weights_on_host; }
  bool gradients_on_host() const { return buffers_->gradients_on_host(); }
  bool rounds_sums() const { return buffers_->rounds_gradients(); }
  DType sum_dtype() const { return buffers_->options().main_grads_dtype; }
  // Whether weights are whole on the device while they are used, and not otherwise.
  bool fetches_weights() const { return shards_weights() || weights_on_host(); }
  // Whether gradients are whole on the device during a block's backward, and not otherwise.
  bool pools_gradients() const { return shards_gradients() || buffers_->copies_gradients(); }
  bool shards_states_by_parts() const { return buffers_->options().shards_states_by_parts; }
  bool shards_gradients() const { return buffers_->shards(DataSharding::kGradients); }

  // Zeroes the gradients if that was put off.
  void ZeroGradients();
  // Gives the job, which concerns bucket group `index`, to the lane or runs it now. Returns the
  // lane's number for it, or 0.
  int64_t Submit(JobKind kind, int index, bool overlap);
  // The lane that does jobs of the kind; null: the caller does them.
  CommLane* LaneOf(JobKind kind) const {
    const bool reduces = kind == kReduce || kind == kLastReduce;
    return reduces && gradient_lane_ != nullptr ? gradient_lane_.get() : lane_.get();
  }
  // Waits until the kind's lane has done the job; 0 is none.
  void WaitFor(JobKind kind, int64_t job);
  void Run(JobKind kind, int index, const ProcessGroups& groups, const Stream& stream);
  void Reduce(JobKind kind, const BucketGroup& bucket_group, const ProcessGroups& groups,
              const Stream& stream);
  void ReduceBucket(JobKind kind, const Bucket& bucket, const Tensor& gradients,
                    const Tensor& rounded, bool is_first, const ProcessGroups& groups,
                    const Stream& stream);
  // Gradients in 16 bits, in the scale in which they are sent, and back; the first one scales
  // `gradients` too.
  void Round(const Tensor& gradients, const Tensor& rounded, const Stream& stream) const;
  void Widen(const Tensor& rounded, const Tensor& gradients, const Stream& stream) const;
  // Gathers the parts of this rank's shards from the other instances.
  void GatherShards(const BucketGroup& bucket_group, const ProcessGroups& groups,
                    const Stream& stream) const;
  void Gather(const BucketGroup& bucket_group, const ProcessGroups& groups,
              const Stream& stream) const;
  // Makes `whole` the weights of the bucket.
  void GatherBucket(const Bucket& bucket, const Tensor& whole, const ProcessGroup& shards,
                    const Stream& stream) const;
  // Sends weights of a tied parameter from the first to the other stages that have it.
  void ShareTied(const Bucket& bucket, const FlatRange& range);
  // Gathers the secondary shards of this rank's host.
  void GatherFromHost(const BucketGroup& bucket_group, const ProcessGroups& groups,
                      const Stream& stream) const;
  void MakeCompressor(MemoryLedger* ledger);
  // What kOneBit averages with one scale each.
  std::vector<TensorPlaces> TensorsOf(const Bucket& bucket) const;
  // Sums the bucket's gradients over a group of as many ranks as its span has, with compression if
  // this step has it. False: it has none, and nothing was done.
  bool SumCompressed(const Bucket& bucket, const Tensor& gradients, const ProcessGroup& group,
                     const Stream& stream);
  // Sums the bucket's gradients by the rows of its table. False: it has not the sparse table, or
  // too many rows of it, and nothing was done.
  bool SumSparseRows(const Bucket& bucket, const Tensor& gradients, const ProcessGroup& group,
                     const Stream& stream);
  size_t IndexOf(const Bucket& bucket) const { return &bucket - buffers_->buckets().data(); }
  // Finds the table that is summed by its rows.
  void FindSparseTable();
  // Take the memory of the secondary shards, and of messages of codes and rows.
  void AllocateSecondary(MemoryLedger* ledger);
  void AllocateMessages(MemoryLedger* ledger);
  bool quantizes_weights() const { return options_.quantized_weights && shards_weights(); }
  bool quantizes_gradients() const { return options_.quantized_gradients && shards_weights(); }

  void StartReduce(int index);
  // Waits until at most `most` reductions are under way, and frees the memory of the others.
  void LimitReductions(size_t most);
  void StartGather(int index);
  // Copies the sum of the bucket group's gradients, which lies in host memory, to the device.
  void BringSum(const BucketGroup& bucket_group, const Stream& stream) const;
  // Begins to bring the sum of a bucket group that will be the next in backward, if it has one.
  void StartBringingSum(int index);
  // Starts to read the bucket group that will be used after those of `block` and `next`, where
  // weights are in a file.
  void ReadWeightsAhead(int block, int next);
  // Copies between page-locked host memory and the device, in the order of the stream.
  static void CopyFromOrToHost(const Tensor& in, const Tensor& out, const Stream& stream);
  // Adds gradients to their sum over micro-batches, which is `stored`, and returns the sum on the
  // device. Where that lies in host memory, Keep takes it there.
  Tensor AddToSum(const Tensor& gradients, const Tensor& stored, bool is_first,
                  const Stream& stream);
  void Keep(const Tensor& sum, const Tensor& stored, const Stream& stream) const;
  // Adds the reduced gradients of this rank's shard to the sum over micro-batches.
  void AddShardToSum(const Bucket& bucket, const Tensor& whole, const Tensor& rounded,
                     bool is_first, bool between_instances, const ProcessGroup& replicas,
                     const Stream& stream);
  void SumOverInstances(const Bucket& bucket, const Tensor& gradients, const FlatRange& range,
                        const ProcessGroup& replicas, const Stream& stream);
  // Makes `data` or `grad` of the bucket group's parameters views of `whole`, or empty if it is.
  void Bind(Tensor Parameter::*member, const BucketGroup& bucket_group, const Tensor& whole) const;
  // Calls body(bucket, range) with the elements of each bucket of a bucket group in its whole
  // gradients.
  template <typename Body>
  static void ForEachTrained(const BucketGroup& bucket_group, Body body);
  void SumPartialGradient(const FlatParameter& flat);

  DataParallelOptions options_;
  ProcessGroups groups_, worker_groups_;
  ParameterBuffers* buffers_;
  Stream stream_;
  bool is_alone_ = false;  // whether gradients and weights are sent to no other rank
  Buffer secondary_;
  Buffer gradient_sum_;  // what AddToSum returns, where sums lie in host memory
  // Messages of codes or rows, those of the longest bucket. Only one of a kind is under way at a
  // time.
  Buffer weight_messages_, gradient_messages_;
  std::unique_ptr<GradientCompressor> compressor_;
  bool compresses_ = false;  // in this step
  std::optional<SparseRowSum> sparse_sum_;
  const Bucket* sparse_bucket_ = nullptr;  // the one that has the sparse table
  SentElements sent_;
  std::vector<BucketGroup> bucket_groups_;
  std::vector<bool> trains_block_;  // whether a block has parameters to train
  BlockPool weights_pool_, gradients_pool_;
  std::unique_ptr<Float8Gather> float8_gather_;  // null: weights are gathered as they are
  std::unique_ptr<WeightReader> weight_reader_;  // null: weights are in no file
  int64_t micro_batches_ = 0;
  const CudaEvent* gradients_read_ = nullptr;  // StartStep's, until gradients are zeroed
  GradientParts* parts_ = nullptr;
  std::vector<InFlight> reductions_;  // sorted by the order in which they started
  // Last, since they use the others until they have ended. Gradients that go to host memory, and to
  // no other rank, have a lane of their own, so that weights come meanwhile.
  std::unique_ptr<CommLane> lane_, gradient_lane_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_DATA_PARALLEL_H_
