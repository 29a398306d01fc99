// Gathers weights of which FP8 products need only the codes: one byte for each element.
//
// The owner of an element sends its code, and the others decode it. What they get is quantized to
// the same codes (ops/float8/flat.h, or flat_blocks.h where each block of a weight has a scale), so
// that products have the bits that they have when weights are gathered in the model's dtype. An
// owner keeps its elements as they are. Weights of other layers, norms and biases are sent in the
// model's dtype along with the codes.
#ifndef MEGATRON_OPTIM_FLOAT8_GATHER_H_
#define MEGATRON_OPTIM_FLOAT8_GATHER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/float8_scaling.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// The weights that are sent as codes.
struct Float8Weights {
  std::vector<std::string> names;  // weights of this stage, or also of others
  // Returns what the scale of a weight is made of, or nothing where that is the weight's own
  // largest magnitude; null: it always is. It is fp32 [1]; of experts, each of which has a scale,
  // [experts], those of all ranks.
  std::function<Tensor(const std::string& name)> predicted;
  // The parts of a matrix that have scales: kTensor, or kBlocks, whose scales are never predicted.
  // Blocks are those of a rank's own part of a matrix that is cut over tensor-parallel ranks.
  Float8Scaling scaling = Float8Scaling::kTensor;
  bool power_of_two = true;  // as in ops::QuantizeBlocks
};

class Float8Gather {
 public:
  // The buffers must outlive the object.
  Float8Gather(const Float8Weights& weights, const ParameterBuffers* buffers, MemoryLedger* ledger);

  // Whether Measure has been called. Before that, weights are the initial ones, which every rank
  // computes, or must be gathered in the model's dtype.
  bool measured() const { return measured_; }
  // Finds the largest magnitude of each weight, and what its scale is made of. `tensor` are the
  // ranks that weights are cut over, `data` those that they are sharded over, and `expert_data`
  // those that experts are sharded over. The first two together are all ranks with other experts,
  // too. It is called when the weights have changed.
  void Measure(const ProcessGroup& tensor, const ProcessGroup& data,
               const ProcessGroup& expert_data, const Stream& stream);
  // Returns the largest magnitudes by name, as `predicted` does; none before Measure, and none of
  // blocks.
  std::map<std::string, std::vector<float>> Largest() const;
  // Writes the bucket's weights to `whole`, of which this rank's shard may be the stored weights
  // themselves.
  void Gather(const Bucket& bucket, const Tensor& whole, const ProcessGroup& group,
              const Stream& stream) const;

  // The bytes that a rank sends of the bucket.
  int64_t BytesOf(const Bucket& bucket) const;

 private:
  // A weight that is sent as codes: a matrix, or those of this rank's experts.
  struct Weight {
    int64_t matrices = 1, size = 0, columns = 1;  // the elements and columns of a matrix
    // Its elements of largest_ and amax_: with kTensor one for each matrix, also those of other
    // ranks' experts, of which `first` is the first one here; else those of the matrices' blocks.
    int64_t begin = 0, end = 0, first = 0;
  };
  // Elements that are sent alike, counted from the bucket's begin.
  struct Run {
    FlatRange range;
    const Weight* weight = nullptr;  // the one whose codes are sent; null: sent as they are
    int64_t matrix = 0, first = 0;   // the matrix, and the place of the first element in it
  };
  Weight WeightOf(const Parameter& parameter) const;
  // The part of largest_ or amax_ that belongs to a matrix.
  Tensor ScalesOf(const Tensor& of_all, const Weight& weight, int64_t matrix) const;
  std::vector<Run> RunsOf(const Bucket& bucket, const FlatRange& shard) const;
  static int64_t BytesOf(const std::vector<Run>& runs, int64_t element_bytes);
  // Converts the runs of `elements`, which begin at `origin`, to the message at this byte, or back.
  void Convert(const std::vector<Run>& runs, int64_t origin, const Tensor& elements,
               int64_t message, bool back, const Stream& stream) const;
  void Encode(const Tensor& x, const Run& run, const Tensor& codes, const Stream& stream) const;
  void Decode(const Tensor& codes, const Run& run, const Tensor& x, const Stream& stream) const;
  bool has_blocks() const { return scaling_ == Float8Scaling::kBlocks; }

  const ParameterBuffers* buffers_;
  std::function<Tensor(const std::string& name)> predicted_;
  Float8Scaling scaling_;
  bool power_of_two_;
  std::map<const Parameter*, Weight> weights_;
  bool measured_ = false;
  Buffer buffer_, messages_;
  Tensor largest_, amax_;    // those of all weights, experts last
  int64_t num_dense_ = 0;    // the elements in front of those of experts
  HostMirror host_largest_;  // without blocks
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_FLOAT8_GATHER_H_
