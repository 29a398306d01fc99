// Splits a text into sentences, for models that are trained on pairs of them (BERT) or on spans of
// them (T5).
//
// The splitter uses rules and no statistics, so that the same text gives the same sentences
// everywhere:
//   - . ! ? … end a sentence if white space follows, together with the quotes and brackets that
//     close after them, unless the next word begins with a small letter.
//   - A period does not end a sentence after titles and the like (Dr., e.g.), after references
//     before a digit (No. 5, Fig. 2), or after the number or letter of a list item (1. First).
//   - A period after initials, acronyms and abbreviations that may also end a sentence (J., U.S.,
//     Inc., p.m.) ends it only before a word that mostly begins sentences (The, He, But).
//   - Full stops that need no space after them (。！？｡．।॥؟۔։።။។) end a sentence at once, but not
//     inside of 「」 and similar brackets, unless that quotation is a sentence of its own.
//   - A blank line always ends a sentence.
// docs/data_format.md gives examples.
#ifndef MEGATRON_DATA_TEXT_SENTENCE_SPLITTER_H_
#define MEGATRON_DATA_TEXT_SENTENCE_SPLITTER_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

struct SentenceSplitterOptions {
  // White space after a sentence belongs to it, so that all sentences together are the text (except
  // for white space before the first). If false, it belongs to no sentence.
  bool keep_newlines = false;
  // Additional words after which a period never ends a sentence, written without the period.
  std::vector<std::string> abbreviations;
};

// Sets *sentences to the sentences of `text`, as views into it; there are none if it is all white
// space. The time is linear in the length of any text.
void SplitSentences(absl::string_view text, const SentenceSplitterOptions& options,
                    std::vector<absl::string_view>* sentences);

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_SENTENCE_SPLITTER_H_
