// The types of tokens in an indexed dataset: little-endian integers of one to eight bytes.
#ifndef MEGATRON_DATA_INDEXED_TOKEN_TYPE_H_
#define MEGATRON_DATA_INDEXED_TOKEN_TYPE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

// The values are those in the file. The codes 6 and 7, f64 and f32, hold no tokens.
enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

absl::StatusOr<TokenType> TokenTypeFromCode(uint8_t code);

int TokenSize(TokenType type);

// Returns "u16" and so on.
absl::string_view TokenTypeName(TokenType type);

// Returns the type that Megatron writes for a vocabulary of this size: u16 below 65,500 and i32
// from there on.
TokenType SmallestTokenType(int64_t vocab_size);

}  // namespace megatron

#endif  // MEGATRON_DATA_INDEXED_TOKEN_TYPE_H_
