// The contents of a SentencePiece model file: a protocol buffer of message ModelProto. It is read
// field by field because the library that defines it is not safe with adversarial files.
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
  // Ids of the pieces that spell bytes; empty without byte fallback.
  std::vector<int32_t> byte_ids;

  Type type = Type::kUnigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string unk_surface = " \u2047 ";
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";

  Normalizer normalizer;
  std::string denormalizer_charsmap;
};

// Parses a model. kInvalidArgument if `bytes` are not valid: broken framing, a piece that is empty,
// a duplicate or of 8000 bytes and more, a score that is not a number, no unknown piece or two,
// byte fallback without all the bytes. Memory is proportional to `bytes`.
absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(absl::string_view bytes);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_MODEL_H_
