// The parts of a model that a pipeline stage holds.
#ifndef MEGATRON_MODELS_STAGE_PLACEMENT_H_
#define MEGATRON_MODELS_STAGE_PLACEMENT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "megatron/pipeline/schedule.h"

namespace megatron {

// The model is cut into stages * chunks parts of consecutive layers.
struct StagePlacement {
  int stage = 0;
  int stages = 1;
  int chunks = 1;
  PartOrder order = PartOrder::kRoundRobin;
  // Number of layers of each part of the model, in order; an encoder's come before the decoder's.
  // Empty: all parts have as many; validation refuses a number of layers that doesn't divide.
  std::vector<int64_t> layers;
  // Whether the layers of multi-token prediction are behind those of the part in front of the last,
  // which then holds nothing but the heads. Else they are in the last part.
  bool mtp_before_last = false;
  // The first part, in the model's order, that has parameters to train (first_trained_part.h).
  int first_trained = 0;

  int parts() const { return stages * chunks; }
  bool first() const { return stage == 0; }            // holds the embedding
  bool last() const { return stage == last_stage(); }  // holds the head
  int last_stage() const { return PlaceOf(order, stages, parts() - 1).stage; }
  // The part that layers of multi-token prediction are in, where the model has them, and its stage.
  int mtp_part() const { return parts() - (mtp_before_last ? 2 : 1); }
  int mtp_stage() const { return PlaceOf(order, stages, mtp_part()).stage; }

  // Returns the stages that hold the word table, ascending: the first, the last where the table is
  // the output matrix, and that of multi-token prediction.
  std::vector<int> StagesWithWords(bool is_output_matrix, bool has_mtp) const {
    std::vector<int> with_words = {0};
    if (is_output_matrix) with_words.push_back(last_stage());
    if (has_mtp) with_words.push_back(mtp_stage());
    std::sort(with_words.begin(), with_words.end());
    with_words.erase(std::unique(with_words.begin(), with_words.end()), with_words.end());
    return with_words;
  }
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_STAGE_PLACEMENT_H_
