// What a SentencePiece model file says: a protocol buffer of message ModelProto, read field by
// field because the library that defines it isn't safe with hostile files.
#ifndef MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_MODEL_H_
#define MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

struct SentencePieceModel {
  enum class Type { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  enum class Kind {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };

  struct Piece {
    std::string text;
    float score = 0;
    Kind kind = Kind::kNormal;
  };

  struct Normalizer {
    std::string charsmap;  // precompiled_charsmap.h
    bool add_dummy_prefix = true;
    bool remove_extra_whitespaces = true;
    bool escape_whitespaces = true;
  };

  std::vector<Piece> pieces;  // a piece's id is its index
  int32_t unk_id = -1;
  // By byte; empty without byte fallback.
  std::vector<int32_t> byte_ids;

  Type type = Type::kUnigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string unk_surface = " \u2047 ";
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";

  Normalizer normalizer;
  std::string denormalizer_charsmap;
};

// kInvalidArgument where `bytes` are no model: broken framing, an empty piece, one spelled like
// another or of 8000 bytes and more, a score that is no number, no unknown piece or two, byte
// fallback without all the bytes. What is allocated is in proportion to `bytes`.
absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(absl::string_view bytes);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_MODEL_H_
