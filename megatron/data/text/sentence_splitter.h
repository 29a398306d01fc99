// Cuts a text into sentences, for models that are trained on pairs of them (BERT) or on spans of
// them (T5).
//
// By rules, not by statistics, so that the same text gives the same sentences anywhere:
//   - . ! ? … end a sentence where white space follows, with the quotes and brackets that close
//     behind them, unless the next word begins with a small letter.
//   - A period ends none behind titles and the like (Dr., e.g.), nor behind references before a
//     digit (No. 5, Fig. 2), nor behind the number or letter of an item (1. First).
//   - Behind initials, acronyms and abbreviations that may also stand last (J., U.S., Inc., p.m.)
//     it does only before a word that mostly begins sentences (The, He, But).
//   - Full stops that need no space behind them (。！？｡．।॥؟۔։።။។) end a sentence at once, but not
//     inside of 「」 and its kind, unless that quotation is a sentence of its own.
//   - A blank line ends whatever stands before it.
// docs/data_format.md says the same with examples.
#ifndef MEGATRON_DATA_TEXT_SENTENCE_SPLITTER_H_
#define MEGATRON_DATA_TEXT_SENTENCE_SPLITTER_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megatron {

struct SentenceSplitterOptions {
  // White space behind a sentence belongs to it, so that all sentences together are the text (but
  // for what stands before the first); else it belongs to none.
  bool keep_newlines = false;
  // Words behind which a period never ends a sentence, besides the built-in ones; without it.
  std::vector<std::string> abbreviations;
};

// Sets *sentences to those of `text`, views into it; none where it is all white space. In time
// linear in the text, whatever it is.
void SplitSentences(absl::string_view text, const SentenceSplitterOptions& options,
                    std::vector<absl::string_view>* sentences);

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_SENTENCE_SPLITTER_H_
