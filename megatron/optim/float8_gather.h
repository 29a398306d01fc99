// Gathers weights of which FP8 products need only the codes: one byte for each element.
//
// The owner of an element sends its code, and the others decode it. What they get is quantized to
// the same codes (ops/float8/flat.h), so that products have the bits that they have when weights
// are gathered in the model's dtype. An owner keeps its elements as they are. Weights of other
// layers, norms and biases are sent in the model's dtype along with the codes.
#ifndef MEGATRON_OPTIM_FLOAT8_GATHER_H_
#define MEGATRON_OPTIM_FLOAT8_GATHER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "megatron/comm/process_group.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// The weights that are sent as codes.
struct Float8Weights {
  std::vector<std::string> names;  // weights of this stage, or also of others
  // Returns what the scale of a weight is made of (fp32 [1]), or nothing where that is the weight's
  // own largest magnitude; null: it always is.
  std::function<Tensor(const std::string& name)> predicted;
};

class Float8Gather {
 public:
  // The buffers must outlive the object.
  Float8Gather(const Float8Weights& weights, const ParameterBuffers* buffers, MemoryLedger* ledger);

  // Whether Measure has been called. Before that, weights are the initial ones, which every rank
  // computes, or must be gathered in the model's dtype.
  bool measured() const { return measured_; }
  // Finds the largest magnitude of each weight, and what its scale is made of. `groups` are those
  // over which weights are cut or sharded. It is called when the weights have changed.
  void Measure(absl::Span<const ProcessGroup> groups, const Stream& stream);
  // Returns the largest magnitudes by name; none before Measure.
  std::map<std::string, float> Largest() const;
  // Writes the bucket's weights to `whole`, of which this rank's shard may be the stored weights
  // themselves.
  void Gather(const Bucket& bucket, const Tensor& whole, const ProcessGroup& group,
              const Stream& stream) const;

  // The bytes that a rank sends of the bucket.
  int64_t BytesOf(const Bucket& bucket) const;

 private:
  // Elements that are sent alike, counted from the bucket's begin.
  struct Run {
    FlatRange range;
    int weight =
        -1;  // the number of the weight whose codes are sent; -1: they are sent as they are
  };
  std::vector<Run> RunsOf(const Bucket& bucket, const FlatRange& shard) const;
  static int64_t BytesOf(const std::vector<Run>& runs, int64_t element_bytes);
  // Converts the runs of `elements`, which begin at `origin`, to the message at this byte, or back.
  void Convert(const std::vector<Run>& runs, int64_t origin, const Tensor& elements,
               int64_t message, bool back, const Stream& stream) const;
  // What the scale of a weight is made of.
  Tensor Amax(int weight) const { return amax_.Slice(0, weight, weight + 1); }

  const ParameterBuffers* buffers_;
  std::function<Tensor(const std::string& name)> predicted_;
  std::map<const Parameter*, int> number_of_;
  bool measured_ = false;
  Buffer buffer_, messages_;
  Tensor largest_, amax_;  // an element for each weight
  HostMirror host_largest_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_FLOAT8_GATHER_H_
