// A step that changes text before it is cut into tokens, and knows where each byte came from.
#ifndef MEGATRON_DATA_TOKENIZER_PIPELINE_NORMALIZER_H_
#define MEGATRON_DATA_TOKENIZER_PIPELINE_NORMALIZER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

// Returns the changed text. If `origins` is not null it is set to one number for each byte of the
// result, ascending, where in the text the character begins that it comes from, and to text.size()
// at the end.
using Normalizer = std::function<std::string(absl::string_view, std::vector<size_t>* origins)>;

// One after the other.
Normalizer ChainNormalizers(std::vector<Normalizer> steps);

// Puts `prefix` before a text that is not empty.
Normalizer PrependNormalizer(std::string prefix);

// Every `pattern`, which is not empty, from left to right.
Normalizer ReplaceNormalizer(std::string pattern, std::string content);

// Every run of two or more spaces.
Normalizer ReplaceSpacesNormalizer(std::string content);

// Takes white space away at the ends.
Normalizer StripNormalizer(bool left, bool right);

// Takes marks away, of all kinds.
Normalizer StripAccentsNormalizer();

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIPELINE_NORMALIZER_H_
