// The largest magnitudes that the operands of a stage's FP8 products had in earlier steps, from
// which the scales of a step are made (*delayed scaling*).
//
//   Float8History history(options);
//   ... layers call history.Add(name) ...
//   history.Allocate(device, ledger);
//   history.StartStep(stream);            // then passes raise layer(i).seen_3
//   history.StartReduce(groups, stream);  // after the last one
//   if (applied) history.Record(stream);
//
// A step adds one entry for each operand: the largest magnitude over all its micro-batches and all
// ranks. So scales do not depend on the layout or on the size of micro-batches. A step that was not
// applied adds none. Where the magnitude is 0 or not finite, the last entry is added again.
#ifndef MEGATRON_LAYERS_FLOAT8_HISTORY_H_
#define MEGATRON_LAYERS_FLOAT8_HISTORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "megatron/comm/process_group.h"
#include "megatron/layers/float8_options.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

class Float8History {
 public:
  // One layer's part. Entries are those of x, the weight and dy (fp32).
  struct Layer {
    Tensor amax_3;  // what the scales are made of
    Tensor seen_3;  // the largest magnitudes of the step so far
  };
  // A tensor that a checkpoint holds, in host memory, the same on all ranks of the stage: fp32
  // [length, 3], the last step first; of a weight with several matrices [matrices, length, 3].
  struct Named {
    std::string name;
    Tensor tensor;
  };

  Float8History() = default;  // the history of a stage whose scales are not delayed
  explicit Float8History(const Float8HistoryOptions& options) : options_(options) {}

  // Adds a layer, by the name of its weight, and returns its number. Of a weight that has several
  // matrices, such as those of all experts, also of other ranks', each is a layer, and the number
  // is that of the first. Not after Allocate().
  int64_t Add(const std::string& name, int64_t matrices = 1);
  void Allocate(Device device, MemoryLedger* ledger);

  bool empty() const { return weights_.empty(); }
  // Whether amax_3 hold anything. Before the first entry they do not, and scales are those of the
  // moment.
  bool known() const { return known_; }
  Layer layer(int64_t index) const;
  // Returns what the scales of a weight are made of (fp32 [matrices]); empty where that is not
  // known.
  Tensor AmaxOfWeight(const std::string& name) const;

  // The tensors that are to be saved, or loaded before Restored() is called.
  std::vector<Named> Tensors() const;
  void Restored(const Stream& stream);

  void StartStep(const Stream& stream) const;
  // `groups` together are all ranks that have parts of the operands. The host has the result when
  // it has waited for the stream.
  void StartReduce(absl::Span<const ProcessGroup> groups, const Stream& stream) const;
  // `weights`: the largest magnitudes of the matrices of weights that this rank may not have whole,
  // by name; they count in place of those of the passes.
  void Record(const Stream& stream, const std::map<std::string, std::vector<float>>& weights = {});

 private:
  // A weight, whose matrices are layers [first, first + matrices).
  struct Weight {
    std::string name;
    int64_t first = 0, matrices = 1;
  };
  int64_t num_layers() const;
  float* HistoryOf(int64_t layer) const;
  void SendScales(const Stream& stream);

  Float8HistoryOptions options_;
  std::vector<Weight> weights_;
  bool known_ = false;
  Buffer buffer_, history_;
  Tensor amax_L3_, seen_L3_, history_LH3_;
  HostMirror host_amax_, host_seen_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_FLOAT8_HISTORY_H_
