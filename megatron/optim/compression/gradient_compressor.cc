#include "megatron/optim/compression/gradient_compressor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "glog/logging.h"
#include "megatron/ops/compression/largest_elements.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/compression/gathered_counts.h"
#include "megatron/optim/compression/quantized_collectives.h"

namespace megatron {
namespace {

constexpr int64_t kFloat = sizeof(float);
// A message of kTopK and kThreshold: places, and then values.
constexpr int64_t kInt = sizeof(int32_t);
constexpr int64_t kBytesOfElement = kInt + kFloat;

// Elements [begin, begin + count) of a buffer; an empty tensor of an empty buffer.
Tensor FloatsOf(const Buffer& buffer, int64_t begin, int64_t count) {
  if (buffer.bytes() == 0) return Tensor();
  return buffer.At(begin * kFloat, DType::kFloat32, {count});
}

}  // namespace

GradientCompressor::GradientCompressor(const GradientCompressionOptions& options,
                                       std::vector<CompressedSpan> spans, Device device,
                                       MemoryLedger* ledger)
    : options_(options), spans_(std::move(spans)) {
  int64_t scratch = 0;
  for (const CompressedSpan& span : spans_) {
    places_.push_back({error_elements_, shard_error_elements_, query_elements_});
    if (options_.type == CompressionType::kPowerSgd) {
      low_rank_sums_.emplace_back(span.elements, span.matrices, options_.rank,
                                  options_.min_compression_rate);
    }
    if (options_.type == CompressionType::kOneBit) {
      CHECK(options_.error_feedback) << "signs without errors lose most of a tensor";
      sign_means_.emplace_back(span.tensors, span.ranks);
    }
    if (span.ranks == 1) continue;
    error_elements_ += ErrorElements(places_.size() - 1);
    const int64_t shard = span.elements / span.ranks;
    CHECK_EQ(shard * span.ranks, span.elements);
    switch (options_.type) {
      case CompressionType::kInt8:
        if (span.everywhere) shard_error_elements_ += shard;
        scratch =
            std::max({scratch, QuantizedReduceScatterScratch(ops::CodeBits::k8, shard, span.ranks),
                      QuantizedAllGatherScratch(shard, span.ranks)});
        break;
      case CompressionType::kTopK:
      case CompressionType::kThreshold:
        // In front are the numbers of elements that ranks send.
        scratch =
            std::max(scratch, span.ranks * (kInt + kBytesOfElement * MostLargest(span.elements)));
        break;
      case CompressionType::kPowerSgd: {
        int64_t queries = low_rank_sums_.back().query_elements();
        scratch = std::max(scratch, kFloat * low_rank_sums_.back().scratch_elements());
        for (const std::vector<MatrixPlace>& matrices : span.matrices_of_ranks) {
          const LowRankSum of_rank(span.elements, matrices, options_.rank,
                                   options_.min_compression_rate);
          queries = std::max(queries, of_rank.query_elements());
          scratch = std::max(scratch, kFloat * of_rank.scratch_elements());
        }
        query_elements_ += queries;
        break;
      }
      case CompressionType::kOneBit:
        shard_error_elements_ += sign_means_.back().mean_error_elements();
        scratch = std::max(scratch, kFloat * sign_means_.back().scratch_elements());
        break;
      case CompressionType::kNone:
        LOG(FATAL) << "there is nothing to compress";
    }
  }
  if (options_.error_feedback) {
    errors_ = Buffer(device, kFloat * error_elements_, "gradients/errors", ledger);
    if (shard_error_elements_ > 0)
      shard_errors_ = Buffer(device, kFloat * shard_error_elements_, "gradients/errors", ledger);
  }
  if (query_elements_ > 0)
    queries_ = Buffer(device, kFloat * query_elements_, "gradients/queries", ledger);
  scratch_ = Buffer(device, scratch, "gradients/messages", ledger);
  StartQueries();
}

void GradientCompressor::StartQueries() const {
  for (size_t i = 0; i < low_rank_sums_.size(); ++i) {
    if (spans_[i].ranks == 1) continue;
    low_rank_sums_[i].Start(
        i, FloatsOf(queries_, places_[i].queries, low_rank_sums_[i].query_elements()));
  }
}

int64_t GradientCompressor::MostLargest(int64_t elements) const {
  const double density =
      options_.type == CompressionType::kTopK ? options_.density : options_.max_density;
  return std::min(elements,
                  static_cast<int64_t>(std::ceil(density * static_cast<double>(elements))));
}

int64_t GradientCompressor::ErrorElements(size_t span) const {
  return options_.type == CompressionType::kOneBit ? sign_means_[span].error_elements()
                                                   : spans_[span].elements;
}

Tensor GradientCompressor::Error(size_t span) const {
  return FloatsOf(errors_, places_[span].error, ErrorElements(span));
}

int64_t GradientCompressor::Sum(size_t span, const Tensor& gradients, const ProcessGroup& group,
                                const Stream& stream) const {
  CHECK_EQ(group.size(), spans_[span].ranks);
  CHECK_EQ(gradients.numel(), spans_[span].elements);
  if (group.size() == 1) return 0;
  switch (options_.type) {
    case CompressionType::kInt8:
      SumCodes(span, gradients, group, stream);
      break;
    case CompressionType::kTopK:
    case CompressionType::kThreshold:
      return SumLargest(span, gradients, group, stream);
    case CompressionType::kPowerSgd:
      low_rank_sums_[span].Sum(
          gradients, Error(span),
          FloatsOf(queries_, places_[span].queries, low_rank_sums_[span].query_elements()),
          FloatsOf(scratch_, 0, low_rank_sums_[span].scratch_elements()), group, stream);
      break;
    case CompressionType::kNone:
      break;
    case CompressionType::kOneBit:
      LOG(FATAL) << "gradients are not summed";
  }
  return 0;
}

void GradientCompressor::Average(size_t span, const Tensor& values, const ProcessGroup& group,
                                 const Stream& stream) const {
  CHECK(options_.type == CompressionType::kOneBit);
  CHECK_EQ(group.size(), spans_[span].ranks);
  CHECK_EQ(values.numel(), spans_[span].elements);
  if (group.size() == 1) return;
  const SignMean& mean = sign_means_[span];
  mean.Average(values, Error(span),
               FloatsOf(shard_errors_, places_[span].shard_error, mean.mean_error_elements()),
               FloatsOf(scratch_, 0, mean.scratch_elements()), group, stream);
}

void GradientCompressor::ForgetErrors(const Stream& stream) const {
  if (errors_.bytes() > 0) ops::Zero(stream, FloatsOf(errors_, 0, error_elements_));
  if (shard_errors_.bytes() > 0)
    ops::Zero(stream, FloatsOf(shard_errors_, 0, shard_error_elements_));
}

void GradientCompressor::Restart(const Stream& stream) const {
  ForgetErrors(stream);
  StartQueries();
}

int64_t GradientCompressor::elements() const {
  int64_t count = 0;
  for (const CompressedSpan& span : spans_) count += span.ranks == 1 ? 0 : span.elements;
  return count;
}

int64_t GradientCompressor::dense_elements() const {
  int64_t count = 0;
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (spans_[i].ranks == 1) continue;
    if (options_.type == CompressionType::kOneBit) count += sign_means_[i].dense_elements();
    if (options_.type == CompressionType::kPowerSgd) count += low_rank_sums_[i].dense_elements();
  }
  return count;
}

void GradientCompressor::SumCodes(size_t span, const Tensor& gradients, const ProcessGroup& group,
                                  const Stream& stream) const {
  const int64_t shard = spans_[span].elements / spans_[span].ranks;
  const Tensor messages = scratch_.At(0, DType::kUInt8, {scratch_.bytes()});
  QuantizedReduceScatter(ops::CodeBits::k8, gradients, Error(span), messages, group, stream);
  if (!spans_[span].everywhere) return;
  const Tensor sum = gradients.Slice(0, group.rank() * shard, (group.rank() + 1) * shard);
  QuantizedAllGather(sum, FloatsOf(shard_errors_, places_[span].shard_error, shard), gradients,
                     messages, group, stream);
}

int64_t GradientCompressor::SumLargest(size_t span, const Tensor& gradients,
                                       const ProcessGroup& group, const Stream& stream) const {
  const Tensor error = Error(span);
  if (!error.empty()) ops::Add(stream, error, gradients);
  int64_t taken = MostLargest(gradients.numel()), room = taken;
  if (options_.type == CompressionType::kThreshold) {
    taken = std::min(taken, ops::CountAbove(stream, gradients, options_.threshold));
    room = GatherCounts(taken, scratch_.At(0, DType::kInt32, {group.size()}), group, stream).most;
    taken = std::min(taken, room);  // room is 0 where the numbers could not be exchanged
  }
  const int64_t first = group.size() * kInt, bytes = kBytesOfElement * room;
  // The places and the values that a rank has sent, of which the last may mean nothing.
  const auto indices = [&](int64_t rank, int64_t count) {
    return scratch_.At(first + rank * bytes, DType::kInt32, {count});
  };
  const auto values = [&](int64_t rank, int64_t count) {
    return scratch_.At(first + rank * bytes + room * kInt, DType::kFloat32, {count});
  };
  ops::TakeLargest(stream, gradients, indices(group.rank(), taken), values(group.rank(), taken));
  if (!error.empty()) ops::Copy(stream, gradients, error);
  ops::Zero(stream, gradients);
  if (room == 0) return 0;
  const Tensor all = scratch_.At(first, DType::kUInt8, {group.size() * bytes});
  group.AllGather(all.Slice(0, group.rank() * bytes, (group.rank() + 1) * bytes), all, stream);
  // Without the others' messages there are no places.
  if (!group.status().ok()) return taken;
  const auto* const counts = static_cast<const int32_t*>(scratch_.data());
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    const int64_t count = options_.type == CompressionType::kThreshold ? counts[rank] : taken;
    ops::AddAtIndices(stream, indices(rank, count), values(rank, count), gradients);
  }
  return taken;
}

std::vector<GradientCompressor::Named> GradientCompressor::states() const {
  std::vector<Named> states;
  const bool one_bit = options_.type == CompressionType::kOneBit;
  if (errors_.bytes() > 0) {
    states.push_back(
        {one_bit ? "momentum_error" : "gradient_error", FloatsOf(errors_, 0, error_elements_)});
  }
  if (shard_errors_.bytes() > 0) {
    states.push_back({one_bit ? "momentum_mean_error" : "gradient_sum_error",
                      FloatsOf(shard_errors_, 0, shard_error_elements_)});
  }
  if (queries_.bytes() > 0)
    states.push_back({"gradient_queries", FloatsOf(queries_, 0, query_elements_)});
  return states;
}

}  // namespace megatron
