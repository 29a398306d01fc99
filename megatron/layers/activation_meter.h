// ActivationMeter: the extremes of what the layers of a model compute in a step's forward passes.
//
// Layers add to it where LayerContext has one, which is in the forward passes of steps that are
// measured, and not while layers are recomputed. Nothing here waits for the stream.
//
// Legend: L layers of the whole model, an encoder's before the decoder's; P forward passes of a
// step through a layer, T rows of the residual stream on this rank, H hidden.
#ifndef MEGATRON_LAYERS_ACTIVATION_METER_H_
#define MEGATRON_LAYERS_ACTIVATION_METER_H_

#include <cstdint>
#include <vector>

#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class ActivationMeter {
 public:
  // The tensors are zeroed before each step by the caller; fp32 where nothing else is said.
  struct Sums {
    Tensor rows_L;      // int64: the numbers of rows whose squares were added
    Tensor squares_L2;  // sums of squares of outputs, as ops::SumOfSquares writes them
    Tensor largest_LP;  // the largest magnitudes of outputs, NaN passed over
    Tensor scores_LP;   // the largest attention scores, times kSharpness; 0 if all are negative
  };
  // `adds`: whether this rank adds its rows to the sums of squares, which it does not where another
  // one has the same rows.
  ActivationMeter(const Sums& sums, bool adds, MemoryLedger* ledger);

  // Attention whose scores are so many times as large has a log-sum-exp that is its largest score,
  // but for the logarithm of the number of keys. Divided again, that is an error of less than 0.02.
  static constexpr float kSharpness = 1024;

  void StartStep(const Stream& stream);
  // Adds the output of a pass through the layer.
  void AddOutput(const Stream& stream, int64_t layer, const Tensor& y_TH);
  // Adds the log-sum-exp of a pass's scores times kSharpness; fp32, of any shape.
  void AddScores(const Stream& stream, int64_t layer, const Tensor& lse);

 private:
  void AddSquares(const Stream& stream, const Tensor& x_N, const Tensor& sum_2) const;
  void AddRows(const Stream& stream, int64_t rows, const Tensor& sum_1) const;
  // Returns the place of a pass, and counts it.
  Tensor PlaceOf(const Tensor& sums_LP, int64_t layer, std::vector<int64_t>* passes_L) const;

  const Sums sums_;
  const bool adds_;
  std::vector<int64_t> outputs_L_, scores_L_;  // numbers of passes so far
  Buffer converted_;                           // a part of an output in fp32
  Buffer zeros_;                               // counting them adds numbers on the device
  Buffer statistics_;  // operands of the op that finds the largest of signed numbers
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_ACTIVATION_METER_H_
