// The mean of tensors over ranks in about one bit for each element, with error feedback on both
// sides: the all-reduce of 1-bit Adam (H. Tang et al., arXiv 2102.02888).
//
// Each tensor is padded with zeros, so that each of n ranks has a chunk of whole bytes of codes.
//   A rank adds its error to its tensor, and sends each other rank the signs of that one's chunk,
//   with one scale for the tensor (ops/compression/sign_codes.h). What codes lack is its error
//   again.
//   The rank of a chunk adds up what all ranks sent, over n, and its error of the chunk. It sends
//   the signs of this to all, with one scale for the chunk. What codes lack is its error again.
// The mean of a chunk is its sign times its scale. All ranks get the same bits.
//
// The tensors lie in one flat tensor and are sent together, by one all-to-all and one all-gather.
// Those that would not be sent in fewer bytes so are averaged as they are. A tensor may lie in
// several places, and is then what is there, one behind the other. This runs on the CPU.
#ifndef MEGATRON_OPTIM_COMPRESSION_SIGN_MEAN_H_
#define MEGATRON_OPTIM_COMPRESSION_SIGN_MEAN_H_

#include <cstdint>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// A place in a flat tensor.
struct TensorPlace {
  int64_t begin, size;
};
// The places of one tensor.
using TensorPlaces = std::vector<TensorPlace>;

class SignMean {
 public:
  // The places do not overlap.
  SignMean(const std::vector<TensorPlaces>& tensors, int ranks);

  // Returns the elements of a tensor with its padding.
  static int64_t PaddedSize(int64_t elements, int ranks);

  // The elements of a rank's errors as one that sends its tensors, and as one that sends means.
  int64_t error_elements() const { return ranks_ * chunk_elements_; }
  int64_t mean_error_elements() const { return chunk_elements_; }
  int64_t scratch_elements() const { return 2 * ranks_ * message_elements() + dense_elements_; }
  // The elements that are averaged as they are.
  int64_t dense_elements() const { return dense_elements_; }

  // The places of flat = about their mean over the group; other elements stay. All are fp32; both
  // errors stay from call to call.
  void Average(const Tensor& flat, const Tensor& error, const Tensor& mean_error,
               const Tensor& scratch, const ProcessGroup& group, const Stream& stream) const;

 private:
  struct Coded {
    TensorPlaces places;
    int64_t chunk;        // elements
    int64_t chunk_begin;  // the chunk begins here among those of all tensors
    size_t index;         // the place of its scale
  };
  // A message is the codes of a chunk of each tensor, and then their scales, in fp32 elements.
  int64_t code_elements() const { return (chunk_elements_ / 8 + 3) / 4; }
  int64_t message_elements() const { return code_elements() + static_cast<int64_t>(coded_.size()); }
  static Tensor Codes(const Tensor& message, const Coded& tensor);
  Tensor Scale(const Tensor& message, const Coded& tensor) const;
  // Encodes what a rank sends each other one of a tensor; `codes` is memory for all of its codes.
  void EncodeTensor(const Coded& tensor, const Tensor& flat, const Tensor& error,
                    const Tensor& codes, const Tensor& messages, const Stream& stream) const;
  // flat's elements of a tensor = the means that the messages of all ranks have.
  void DecodeTensor(const Coded& tensor, const Tensor& messages, const Tensor& flat,
                    const Stream& stream) const;
  void AverageDense(const Tensor& flat, const Tensor& scratch, const ProcessGroup& group,
                    const Stream& stream) const;

  int64_t ranks_;
  std::vector<Coded> coded_;
  std::vector<TensorPlace> dense_;
  int64_t chunk_elements_ = 0, dense_elements_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_COMPRESSION_SIGN_MEAN_H_
