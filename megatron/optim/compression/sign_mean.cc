#include "megatron/optim/compression/sign_mean.h"

#include <algorithm>
#include <numeric>

#include "glog/logging.h"
#include "megatron/ops/compression/sign_codes.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

Tensor Part(const Tensor& flat, int64_t begin, int64_t size) {
  return flat.Slice(0, begin, begin + size);
}

Tensor Piece(const Tensor& flat, int64_t index, int64_t size) {
  return Part(flat, index * size, size);
}

Tensor Bytes(const Tensor& floats) {
  return {floats.raw(), DType::kUInt8, {floats.bytes()}, floats.device()};
}

}  // namespace

int64_t SignMean::PaddedSize(int64_t elements, int ranks) {
  const int64_t multiple = int64_t{ranks} * (8 * ranks / std::gcd(ranks, 8));
  return (elements + multiple - 1) / multiple * multiple;
}

SignMean::SignMean(const std::vector<TensorPlaces>& tensors, int ranks) : ranks_(ranks) {
  for (const TensorPlaces& places : tensors) {
    int64_t size = 0;
    for (const TensorPlace& place : places) size += place.size;
    const int64_t chunk = PaddedSize(size, ranks) / ranks;
    // What a rank sends each other one, in both directions, is no more than in a plain all-reduce.
    const int64_t coded_bytes = 2 * (chunk / 8 + 4), plain_bytes = 2 * 4 * size / ranks;
    if (coded_bytes < plain_bytes) {
      coded_.push_back({places, chunk, chunk_elements_, coded_.size()});
      chunk_elements_ += chunk;
    } else {
      dense_.insert(dense_.end(), places.begin(), places.end());
      dense_elements_ += size;
    }
  }
}

Tensor SignMean::Codes(const Tensor& message, const Coded& tensor) {
  return Part(Bytes(message), tensor.chunk_begin / 8, tensor.chunk / 8);
}

Tensor SignMean::Scale(const Tensor& message, const Coded& tensor) const {
  return Part(message, code_elements() + static_cast<int64_t>(tensor.index), 1);
}

void SignMean::EncodeTensor(const Coded& tensor, const Tensor& flat, const Tensor& error,
                            const Tensor& codes, const Tensor& messages,
                            const Stream& stream) const {
  const Tensor sum = Part(error, ranks_ * tensor.chunk_begin, ranks_ * tensor.chunk);
  int64_t begin = 0;
  for (const TensorPlace& place : tensor.places) {
    ops::Add(stream, Part(flat, place.begin, place.size), Part(sum, begin, place.size));
    begin += place.size;
  }
  const Tensor all = Part(codes, 0, ranks_ * tensor.chunk / 8);
  ops::EncodeSigns(stream, sum, all, Scale(Piece(messages, 0, message_elements()), tensor));
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    const Tensor message = Piece(messages, rank, message_elements());
    ops::Copy(stream, Piece(all, rank, tensor.chunk / 8), Codes(message, tensor));
    if (rank == 0) continue;
    ops::Copy(stream, Scale(Piece(messages, 0, message_elements()), tensor),
              Scale(message, tensor));
  }
}

void SignMean::Average(const Tensor& flat, const Tensor& error, const Tensor& mean_error,
                       const Tensor& scratch, const ProcessGroup& group,
                       const Stream& stream) const {
  CHECK_EQ(group.size(), ranks_);
  const int64_t size = message_elements();
  const Tensor sent = Part(scratch, 0, ranks_ * size),
               received = Part(scratch, ranks_ * size, ranks_ * size);
  if (!dense_.empty())
    AverageDense(flat, Part(scratch, 2 * ranks_ * size, dense_elements_), group, stream);
  if (coded_.empty()) return;
  for (const Coded& tensor : coded_)
    EncodeTensor(tensor, flat, error, Bytes(received), sent, stream);
  group.AllToAll(sent, received, stream);
  const Tensor means = Part(sent, 0, size);
  for (const Coded& tensor : coded_) {
    const Tensor mean = Part(mean_error, tensor.chunk_begin, tensor.chunk);
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const Tensor message = Piece(received, rank, size);
      ops::AddSigns(stream, Codes(message, tensor), Scale(message, tensor),
                    static_cast<float>(ranks_), mean);
    }
    ops::EncodeSigns(stream, mean, Codes(means, tensor), Scale(means, tensor));
  }
  group.AllGather(means, received, stream);
  for (const Coded& tensor : coded_) DecodeTensor(tensor, received, flat, stream);
}

void SignMean::DecodeTensor(const Coded& tensor, const Tensor& messages, const Tensor& flat,
                            const Stream& stream) const {
  int64_t begin = 0;  // that of the place in the tensor
  for (const TensorPlace& place : tensor.places) {
    ops::Zero(stream, Part(flat, place.begin, place.size));
    const int64_t end = begin + place.size;
    for (int64_t from = begin, to = 0; from < end; from = to) {
      const int64_t rank = from / tensor.chunk, first = from % tensor.chunk;
      to = std::min(end, (rank + 1) * tensor.chunk);
      const Tensor message = Piece(messages, rank, message_elements());
      const int64_t first_byte = first / 8, last_byte = (first + to - from + 7) / 8;
      ops::AddSigns(stream, Part(Codes(message, tensor), first_byte, last_byte - first_byte),
                    Scale(message, tensor), /*divisor=*/1,
                    Part(flat, place.begin + from - begin, to - from), static_cast<int>(first % 8));
    }
    begin = end;
  }
}

void SignMean::AverageDense(const Tensor& flat, const Tensor& scratch, const ProcessGroup& group,
                            const Stream& stream) const {
  const auto for_each = [&](const auto& body) {
    int64_t begin = 0;
    for (const TensorPlace& place : dense_) {
      body(Part(flat, place.begin, place.size), Part(scratch, begin, place.size));
      begin += place.size;
    }
  };
  for_each([&](const Tensor& x, const Tensor& copy) { ops::Copy(stream, x, copy); });
  group.AllReduce(scratch, ReduceOp::kSum, stream);
  ops::Scale(stream, 1 / static_cast<float>(ranks_), scratch);
  for_each([&](const Tensor& x, const Tensor& copy) { ops::Copy(stream, copy, x); });
}

}  // namespace megatron
