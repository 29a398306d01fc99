// Packs samples into the micro-batches of a step.
//
// All micro-batches of a step exist at once, because a token's gradient weight has the number of
// tokens of the whole global batch in its denominator. Their memory is taken once, for the largest
// step. The samples of the next ones are read meanwhile, by threads of the packer's own.
//
// For a GPU they are packed in page-locked memory of the host, which has room for two steps: while
// one is being copied or used, the next can be read already.
#ifndef MEGATRON_TRAIN_BATCHES_MICRO_BATCH_PACKER_H_
#define MEGATRON_TRAIN_BATCHES_MICRO_BATCH_PACKER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "megatron/comm/process_group.h"
#include "megatron/data/prefetch.h"
#include "megatron/data/sample.h"
#include "megatron/data/sampler.h"
#include "megatron/layers/context_slice.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/train/batches/micro_batch_room.h"

namespace megatron {

struct PackerOptions {
  SamplerLayout layout;
  int64_t seq_length = 0;
  int64_t max_micro_batches = 1;
  // True if the loss is the mean over the global batch's tokens; else it is the mean over
  // micro-batches of each one's own mean.
  bool per_token_loss = true;
  // True if samples have token types and a class.
  bool has_classes = false;
  // The number of sequences of a sample that has classes.
  int64_t sequences_per_sample = 1;
  // True if tokens of samples of varied lengths have their sample's number, which experts read.
  bool has_sample_numbers = false;
  // The most tokens of a sample for an encoder, whose decoder has seq_length; 0: there are none.
  int64_t encoder_seq_length = 0;
  // The depths of multi-token prediction, and the factor of the mean of each depth's loss.
  int64_t mtp_depths = 0;
  float mtp_loss_factor = 0;
  // Micro-batches of samples of varied lengths are filled up to a multiple of this by a sequence
  // without loss, so that sequence parallelism can divide the tokens evenly.
  int64_t token_multiple = 1;
  // This rank packs its own share of each sample among the context-parallel ranks
  // (context_slice.h); the global batch is counted in whole samples.
  int context_parallel_size = 1, context_parallel_rank = 0, context_team_size = 1;
  // Context-parallel ranks have stripes also of samples of equal lengths.
  bool stripes = false;
  int64_t num_workers = 0;  // threads that read samples ahead, for each source; 0: none

  // Returns whether samples may be shorter than seq_length; each is one sequence then, or
  // sequences_per_sample.
  bool lengths_vary() const { return has_classes || encoder_seq_length > 0; }
};

class MicroBatchPacker {
 public:
  // The batches have shapes only if the device is meta.
  MicroBatchPacker(const PackerOptions& options, Device device, MemoryLedger* ledger);

  struct Step {
    // Samples consumed before this step: sample indices and ordinals start here.
    int64_t consumed_samples = 0;
    int64_t micro_batches = 1;
    float loss_scale = 1;
    // The tokens that are taken from the beginning of each sample; 0: all.
    int64_t seq_length = 0;
    // The samples of all ranks, where these do not fill all of their micro-batches: the last places
    // get samples without weight. 0: all are filled.
    int64_t samples = 0;
  };
  // Reads this rank's samples. `data_group` are the ranks that hold the other samples of the batch
  // of whose loss the gradient is the mean: the global batch, or an island's part of it
  // (comm/island_groups.h). `source` must live until ReleaseSources, or longer than this. Its errors
  // carry kExitData where the samples are wrong or there are no more of them, else kExitIo.
  absl::Status Pack(const SampleSource& source, const Step& step, const ProcessGroup& data_group,
                    const Stream& stream);
  // Does work ahead on a GPU that the next Pack need not do if it is for this step. That Pack
  // reports errors.
  void ReadAhead(const SampleSource& source, const Step& next);
  // Ends the reading of samples ahead, and forgets what was read so: the sources may be destroyed.
  void ReleaseSources();
  // Returns the shapes of a step, for planning.
  void PackShapes(int64_t micro_batches);

  // The micro-batches on the device.
  const std::vector<MicroBatch>& batches() const { return batches_; }
  // The host's copy of one of them. It may be read until the next Pack or ReadAhead.
  MicroBatch HostBatch(int64_t micro_batch) const {
    return OnHost(staging_[current_].host, batches_[micro_batch]);
  }
  // The most tokens of a micro-batch on this rank.
  int64_t most_tokens() const { return LargestSize().tokens / options_.context_parallel_size; }
  // The memory (uint8) of one of them, in which all its tensors lie.
  Tensor BlockOf(int64_t micro_batch) const {
    return buffer_.At(micro_batch * BytesOfOne(), DType::kUInt8, {BytesOfOne()});
  }
  int64_t BytesOfOne() const;

 private:
  MicroBatchRoom Room() const;
  MicroBatchSize LargestSize() const;
  MicroBatch Whole(int64_t index) const;  // the micro-batch at its largest
  static MicroBatch OnHost(const HostMirror& host, const MicroBatch& batch);
  // The tokens of a sample in a step, or the most of them where they vary.
  int64_t LengthIn(const Step& step) const {
    return step.seq_length > 0 ? step.seq_length : options_.seq_length;
  }
  // This rank's shard of samples of so many tokens.
  ContextShard Shard(int64_t length) const {
    return {options_.context_parallel_size, options_.context_parallel_rank,
            options_.lengths_vary() || options_.stripes ? 0 : length, options_.context_team_size};
  }
  // Numbers of tokens are filled up to a multiple of this, so that all ranks of a sample have the
  // same share.
  int64_t TokenMultiple() const {
    const int64_t size = options_.context_parallel_size;
    return options_.token_multiple * (size == 1 ? 1 : size * kContextStripe);
  }
  // A step's micro-batches on the host.
  struct Staging {
    HostMirror host;
    const SampleSource* source = nullptr;  // null: it holds no step that is yet to be packed
    int64_t consumed_samples = 0;
    int64_t seq_length = 0;  // LengthIn(step)
    std::vector<MicroBatch> batches;
  };
  Staging* Holding(const SampleSource& source, const Step& step);  // null: there is none
  Staging* Free();
  absl::Status Read(const SampleSource& source, const Step& step, Staging* staging);
  // Replace whole batches by this rank's share of them: batches on the device, and packed ones on
  // the host.
  void PlaceContextShard(int64_t seq_length);
  void FillContextShard(Staging* staging);
  // Places on the device the micro-batches of the staging.
  void Place(const Step& step, int data_ranks, const Staging& staging);
  // The tokens that count of all ranks: those that the model predicts, and those of each depth.
  using TokenCounts = std::array<float, 1 + kMostMtpDepths>;
  TokenCounts CountTokens(const Staging& staging, const ProcessGroup& data_group,
                          const Stream& stream);
  void Weigh(const Step& step, const TokenCounts& all_tokens, int data_ranks,
             Staging* staging) const;
  SamplePrefetcher& ReaderOf(const SampleSource& source);
  // Takes `range` and, up to a whole micro-batch, samples without weight.
  absl::Status PackOne(SamplePrefetcher& reader, const SampleRange& range, int64_t seq_length,
                       MicroBatch* batch);
  // Returns the samples of a step on so many ranks.
  int64_t SamplesOf(const Step& step, int data_ranks) const {
    return step.samples > 0 ? step.samples
                            : step.micro_batches * options_.layout.micro_batch_size * data_ranks;
  }
  // Appends the sample after the part that is used; `used` grows.
  void Append(const Sample& sample, int64_t ordinal, MicroBatchSize* used, MicroBatch* batch);
  void AppendClasses(const Sample& sample, int64_t ordinal, const MicroBatchSize& used,
                     MicroBatch* batch);
  void AppendNumbers(const Sample& sample, const MicroBatchSize& used, MicroBatch* batch);
  void AppendEncoder(const Sample& sample, int64_t ordinal, MicroBatchSize* used,
                     MicroBatch* batch);
  void AppendSpans(const Sample& sample, MicroBatchSize* used, MicroBatch* batch);
  // Fills what multi-token prediction needs, from the tokens and labels that are there.
  static void FillMtp(MicroBatch* batch);
  void FillUp(MicroBatchSize* used, MicroBatch* batch);
  // Appends a sample of one sequence, or of so many of a token each, without weight.
  void AppendFiller(int64_t tokens, int64_t encoder_tokens, int64_t sequences, MicroBatchSize* used,
                    MicroBatch* batch);
  void WeighSequences(const Step& step, int data_ranks, MicroBatch* batch) const;

  PackerOptions options_;
  Buffer buffer_;
  Staging staging_[2];  // the second is for a GPU only
  int current_ = 0;     // the staging that was packed last
  Sample sample_;
  std::vector<MicroBatch> batches_;
  std::vector<std::pair<const SampleSource*, std::unique_ptr<SamplePrefetcher>>> readers_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_BATCHES_MICRO_BATCH_PACKER_H_
