// Rules that bring texts which were published as separated words back to the form in which people
// write. They are those of Megatron's zero-shot tasks, which lm_eval has, too: a perplexity depends
// on each of them.
#ifndef MEGATRON_EVALUATE_DETOKENIZERS_H_
#define MEGATRON_EVALUATE_DETOKENIZERS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

// For WikiText: "the @-@ word ( here ) , that 's it" gives "the-word (here), that's it".
std::string DetokenizeWikitext(absl::string_view text);

// For the Penn Treebank.
std::string DetokenizePtb(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_EVALUATE_DETOKENIZERS_H_
