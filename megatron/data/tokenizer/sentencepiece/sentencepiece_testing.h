// SentencePiece model files made by hand, for tests.
#ifndef MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TESTING_H_
#define MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TESTING_H_

#include <string>
#include <utility>
#include <vector>

#include "megatron/data/tokenizer/sentencepiece/sentencepiece_model.h"

namespace megatron {

// The file that a model is read from: `model` as a protocol buffer. unk_id and byte_ids, which
// follow from the pieces, don't count.
std::string SerializeSentencePieceModel(const SentencePieceModel& model);

// A model of <unk>, <s>, </s> and `pieces` with their scores, and <0x00> … <0xFF> if `bytes`,
// without rules and with SentencePiece's defaults.
SentencePieceModel MakeSentencePieceModel(SentencePieceModel::Type type,
                                          const std::vector<std::pair<std::string, float>>& pieces,
                                          bool bytes = false);

// A charsmap (precompiled_charsmap.h) that replaces the first of each pair by the second. All have
// different first bytes.
std::string MakeCharsmap(const std::vector<std::pair<std::string, std::string>>& rules);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TESTING_H_
