// Steps that change a text before it is split into tokens, and record where each byte came from.
#ifndef MEGATRON_DATA_TOKENIZER_PIPELINE_NORMALIZER_H_
#define MEGATRON_DATA_TOKENIZER_PIPELINE_NORMALIZER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

// Returns the changed text. If `origins` is not null, it is set to one number for each byte of the
// result, in ascending order, and text.size() at the end. The number is the position in the text of
// the character that the byte comes from.
using Normalizer = std::function<std::string(absl::string_view, std::vector<size_t>* origins)>;

// Applies the steps one after the other.
Normalizer ChainNormalizers(std::vector<Normalizer> steps);

// Puts `prefix` before a text that is not empty.
Normalizer PrependNormalizer(std::string prefix);

// Replaces every `pattern`, which is not empty, from left to right.
Normalizer ReplaceNormalizer(std::string pattern, std::string content);

// Replaces every run of two or more spaces.
Normalizer ReplaceSpacesNormalizer(std::string content);

// Removes white space at the ends.
Normalizer StripNormalizer(bool left, bool right);

// Removes marks of all kinds.
Normalizer StripAccentsNormalizer();

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIPELINE_NORMALIZER_H_
