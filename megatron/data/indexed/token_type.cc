#include "megatron/data/indexed/token_type.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace megatron {

absl::StatusOr<TokenType> TokenTypeFromCode(uint8_t code) {
  switch (code) {
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 8:
      return static_cast<TokenType>(code);
    case 6:
    case 7:
      return absl::DataLossError(
          absl::StrCat("type code ", code, " is floating point, which holds no tokens"));
    default:
      return absl::DataLossError(absl::StrCat("type code ", code, " is none of 1 to 8"));
  }
}

int TokenSize(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  LOG(FATAL) << "token type " << static_cast<int>(type);
}

absl::string_view TokenTypeName(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "u8";
    case TokenType::kI8:
      return "i8";
    case TokenType::kI16:
      return "i16";
    case TokenType::kU16:
      return "u16";
    case TokenType::kI32:
      return "i32";
    case TokenType::kI64:
      return "i64";
  }
  LOG(FATAL) << "token type " << static_cast<int>(type);
}

TokenType SmallestTokenType(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

}  // namespace megatron
