// Sums of gradients over data-parallel ranks in fewer bytes, with error feedback: what a rank's
// messages lack of its gradients is added to its gradients of the next step.
//
//   kInt8      Each rank sends every other one its summands of that rank's shard in codes of 8 bits
//              (ops/compression/group_codes.h). Where all ranks need the whole sum, the sums of
//              shards are sent in codes too, with an error of their own.
//   kTopK      Each rank sends all others the elements of largest magnitude, a part `density` of a
//              bucket, and their places.
//   kThreshold Each rank sends the elements whose magnitude is above a threshold, or where these
//              are more than a part `max_density` of a bucket, the largest of them. The messages of
//              all ranks have room for as many elements as the rank with most of them sends.
//   kPowerSgd  Matrices are summed as matrices of low rank (low_rank_sum.h).
//   kOneBit    Gradients are not summed. The optimizer makes momentum of a rank's own gradients,
//              and has it averaged over ranks with signs for its elements (sign_mean.h). The update
//              rule knows in which steps.
//
// All ranks of a group get the same bits. Gradients with a NaN or an infinity make their group, the
// elements that are sent or all matrices of the bucket not finite, and the error of this rank too:
// after such a step Restart() is called.
#ifndef MEGATRON_OPTIM_COMPRESSION_GRADIENT_COMPRESSOR_H_
#define MEGATRON_OPTIM_COMPRESSION_GRADIENT_COMPRESSOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/optim/compression/low_rank_sum.h"
#include "megatron/optim/compression/sign_mean.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

enum class CompressionType { kNone, kInt8, kTopK, kThreshold, kPowerSgd, kOneBit };

struct GradientCompressionOptions {
  CompressionType type = CompressionType::kNone;
  int64_t start_iteration = 0;  // number of steps before the first one with compression
  bool error_feedback = true;
  double density = 0.01;            // kTopK
  float threshold = 0;              // kThreshold
  double max_density = 0.1;         // kThreshold
  int rank = 1;                     // kPowerSgd: that of the matrices
  double min_compression_rate = 2;  // kPowerSgd: matrices that gain less are summed as they are
  // kOneBit: parameters of a span are one tensor, but those that tensor-parallel ranks hold alike
  // are another, whose averages are the same on these ranks.
  bool joins_tensors = false;

  bool enabled() const { return type != CompressionType::kNone; }
};

// Gradients that are summed at once.
struct CompressedSpan {
  int64_t elements = 0;
  int ranks = 1;                      // 1: they are not summed
  bool everywhere = false;            // whether all ranks need the whole sum, or each its shard
  std::vector<MatrixPlace> matrices;  // kPowerSgd
  // kPowerSgd: the matrices of each rank, where ranks have other ones. All take as much memory.
  std::vector<std::vector<MatrixPlace>> matrices_of_ranks;
  std::vector<TensorPlaces> tensors;  // kOneBit
};

class GradientCompressor {
 public:
  // `spans` are numbered from 0 in calls of Sum. With several ranks, their elements are a multiple
  // of the ranks.
  GradientCompressor(const GradientCompressionOptions& options, std::vector<CompressedSpan> spans,
                     Device device, MemoryLedger* ledger);

  // gradients = about their sum over the group; not with kOneBit. Where it is not needed
  // everywhere, elements outside this rank's shard are undefined. Returns the number of elements
  // that this rank has sent, with kTopK and kThreshold.
  int64_t Sum(size_t span, const Tensor& gradients, const ProcessGroup& group,
              const Stream& stream) const;

  // The tensors of the span = about their mean over the group; with kOneBit alone.
  void Average(size_t span, const Tensor& values, const ProcessGroup& group,
               const Stream& stream) const;

  // Zeroes the errors.
  void ForgetErrors(const Stream& stream) const;
  // Makes the states those of the start.
  void Restart(const Stream& stream) const;

  // The number of elements that ranks sum or average, and of those that they send as they are:
  // of tensors whose signs would not take fewer bytes with kOneBit, and outside kPowerSgd's
  // matrices.
  int64_t elements() const;
  int64_t dense_elements() const;

  // What stays from step to step, for checkpoints. It is this rank's own, and is of use only where
  // spans and groups are the same.
  struct Named {
    std::string name;
    Tensor tensor;
  };
  std::vector<Named> states() const;

 private:
  // The elements of a span's tensors begin here in those of all spans.
  struct Place {
    int64_t error = 0, shard_error = 0, queries = 0;
  };
  void SumCodes(size_t span, const Tensor& gradients, const ProcessGroup& group,
                const Stream& stream) const;
  int64_t SumLargest(size_t span, const Tensor& gradients, const ProcessGroup& group,
                     const Stream& stream) const;
  // The most elements that a rank sends of so many.
  int64_t MostLargest(int64_t elements) const;
  int64_t ErrorElements(size_t span) const;
  void StartQueries() const;
  Tensor Error(size_t span) const;

  const GradientCompressionOptions options_;
  const std::vector<CompressedSpan> spans_;
  std::vector<Place> places_;
  std::vector<LowRankSum> low_rank_sums_;  // kPowerSgd: one for each span
  std::vector<SignMean> sign_means_;       // kOneBit: one for each span
  int64_t error_elements_ = 0, shard_error_elements_ = 0, query_elements_ = 0;
  Buffer errors_, shard_errors_, queries_;
  Buffer scratch_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_COMPRESSION_GRADIENT_COMPRESSOR_H_
