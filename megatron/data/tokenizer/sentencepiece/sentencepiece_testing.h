// SentencePiece model files made by hand, for tests.
#ifndef MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TESTING_H_
#define MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TESTING_H_

#include <string>
#include <utility>
#include <vector>

#include "megatron/data/tokenizer/sentencepiece/sentencepiece_model.h"

namespace megatron {

// Returns the file of a model: `model` as a protocol buffer. unk_id and byte_ids are ignored, as
// they follow from the pieces.
std::string SerializeSentencePieceModel(const SentencePieceModel& model);

// Returns a model of <unk>, <s>, </s>, <0x00> … <0xFF> if `bytes`, and `pieces` with their scores,
// without rules and with SentencePiece's defaults.
SentencePieceModel MakeSentencePieceModel(SentencePieceModel::Type type,
                                          const std::vector<std::pair<std::string, float>>& pieces,
                                          bool bytes = false);

// Returns a charsmap (precompiled_charsmap.h) that replaces the first of each pair by the second.
// All first strings must have different first bytes.
std::string MakeCharsmap(const std::vector<std::pair<std::string, std::string>>& rules);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TESTING_H_
