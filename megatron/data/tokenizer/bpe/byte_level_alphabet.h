// The alphabet in which byte-level vocabularies spell bytes, so that their files are readable text:
// printable ASCII and Latin-1 stand for themselves, the other 68 bytes are U+0100 and so on. A
// space is "Ġ".
#ifndef MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_ALPHABET_H_
#define MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_ALPHABET_H_

#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

// Returns the spelling of bytes, such as "Ġthe" for " the".
std::string SpellBytes(absl::string_view bytes);

// Appends the bytes that `spelling` stands for and returns true. If it is not spelled in this
// alphabet, appends nothing and returns false.
bool AppendSpelledBytes(absl::string_view spelling, std::string* bytes);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_ALPHABET_H_
