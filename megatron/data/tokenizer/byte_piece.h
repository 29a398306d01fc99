// Tokens that spell one byte, such as "<0x0A>".
#ifndef MEGATRON_DATA_TOKENIZER_BYTE_PIECE_H_
#define MEGATRON_DATA_TOKENIZER_BYTE_PIECE_H_

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace megatron {

// Returns the byte that a token spells; -1 for any other token.
inline int ByteOfPiece(absl::string_view piece) {
  int byte;
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>' ||
      !absl::ascii_isxdigit(static_cast<unsigned char>(piece[3])) ||
      !absl::SimpleHexAtoi(piece.substr(3, 2), &byte)) {
    return -1;
  }
  return byte;
}

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BYTE_PIECE_H_
