#include "megatron/data/tokenizer/wordpiece/story_vocabulary.h"

#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "megatron/data/text/stories.h"

namespace megatron {
namespace {

// Splits text as BERT does: lower-case words, and each other character by itself.
void AddWords(absl::string_view text, std::set<std::string>* words) {
  std::string word;
  for (const char c : absl::StrCat(text, " ")) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      word += absl::ascii_tolower(static_cast<unsigned char>(c));
      continue;
    }
    if (!word.empty()) words->insert(word);
    word.clear();
    if (!absl::ascii_isspace(static_cast<unsigned char>(c))) words->insert(std::string(1, c));
  }
}

void AddTemplate(absl::string_view text, std::set<std::string>* words) {
  while (!text.empty()) {
    const size_t open = text.find('{');
    AddWords(text.substr(0, open), words);
    if (open == absl::string_view::npos) return;
    const size_t close = text.find('}', open);
    for (const absl::string_view word : StoryWords(text.substr(open + 1, close - open - 1)))
      AddWords(word, words);
    text.remove_prefix(close + 1);
  }
}

}  // namespace

std::string StoryVocabulary() {
  std::set<std::string> words;
  for (const auto& sentence : StoryTemplates()) {
    for (const absl::string_view text : sentence) AddTemplate(text, &words);
  }
  for (const char c : absl::string_view("abcdefghijklmnopqrstuvwxyz0123456789")) {
    words.insert(std::string(1, c));
    words.insert(absl::StrCat("##", std::string(1, c)));
  }
  return absl::StrCat("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", absl::StrJoin(words, "\n"), "\n");
}

}  // namespace megatron
