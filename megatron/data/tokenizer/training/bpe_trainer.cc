#include "megatron/data/tokenizer/training/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/bpe/byte_level_alphabet.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

// Threads are not worth waking for fewer words.
constexpr size_t kWordsWorthThreads = 4096;
constexpr int32_t kTokensBetweenCalls = 64;

using Pair = uint64_t;  // its order is that of (first, second)

Pair MakePair(uint32_t first, uint32_t second) { return Pair{first} << 32 | second; }
uint32_t First(Pair pair) { return static_cast<uint32_t>(pair >> 32); }
uint32_t Second(Pair pair) { return static_cast<uint32_t>(pair); }

using WordList = std::vector<uint32_t>;  // ascending

struct Word {
  size_t begin;     // index of the first symbol
  uint32_t length;  // number of symbols
  int64_t count;
};

// The symbols on one side of the merged pair: for each, its count and the words with it.
class Neighbors {
 public:
  struct Neighbor {
    int64_t count = 0;
    WordList words;
  };

  void Resize(size_t num_symbols) { by_symbol_.resize(num_symbols); }

  void Add(uint32_t symbol, int64_t count, uint32_t word) {
    Neighbor& neighbor = by_symbol_[symbol];
    if (neighbor.count == 0) symbols_.push_back(symbol);
    neighbor.count += count;
    if (neighbor.words.empty() || neighbor.words.back() != word) neighbor.words.push_back(word);
  }

  // Adds the counts of `other`, which has seen later words and is empty afterwards.
  void Take(Neighbors* other) {
    for (const uint32_t symbol : other->symbols_) {
      Neighbor& theirs = other->by_symbol_[symbol];
      Neighbor& ours = by_symbol_[symbol];
      if (ours.count == 0) {
        symbols_.push_back(symbol);
        std::swap(ours, theirs);
      } else {
        ours.count += theirs.count;
        ours.words.insert(ours.words.end(), theirs.words.begin(), theirs.words.end());
        theirs = Neighbor();
      }
    }
    other->symbols_.clear();
  }

  const std::vector<uint32_t>& symbols() const { return symbols_; }
  Neighbor& operator[](uint32_t symbol) { return by_symbol_[symbol]; }

  void Clear() {
    for (const uint32_t symbol : symbols_) by_symbol_[symbol] = Neighbor();
    symbols_.clear();
  }

 private:
  std::vector<Neighbor> by_symbol_;
  std::vector<uint32_t> symbols_;  // symbols with a count
};

// A pair that may be merged.
struct Candidate {
  int64_t count;  // count when it was queued; the count can only have decreased
  Pair pair;
  uint32_t list;  // number of the list of words that have the pair

  // std::priority_queue returns the largest first.
  bool operator<(const Candidate& other) const {
    if (count != other.count) return count < other.count;
    return pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(const BpeTrainerOptions& options, ThreadPool* pool)
      : options_(options), pool_(*pool), sides_(pool->num_threads()) {}

  absl::Status Init(const WordCounts& words);
  void Run(absl::FunctionRef<void(int32_t)> progress);
  TrainedBpe Result();

 private:
  struct Sides {
    Neighbors left, right;
  };

  // Pairs that are too rare are not queued: they can only become rarer.
  bool IsFrequent(int64_t count) const {
    return count >= std::max<int64_t>(options_.min_frequency, 1);
  }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens_.size()); }

  // Returns the id of a token, which may be new.
  uint32_t AddToken(std::string spelling, int32_t length);
  absl::Status AddAlphabet(const WordCounts& words);
  void AddWords(const WordCounts& words);
  void CountPairs();
  void PutInLine(Pair pair, WordList words);
  void Merge(Pair pair, uint32_t merged, const WordList& words);
  void MergeInWord(Pair pair, uint32_t merged, uint32_t word, Sides* sides);
  void UpdateCounts(Pair pair, uint32_t merged, Sides* sides);

  const BpeTrainerOptions& options_;
  ThreadPool& pool_;

  int32_t num_special_tokens_ = 0;
  std::vector<std::string> tokens_;
  std::vector<int32_t> lengths_;  // lengths of the tokens in bytes
  absl::flat_hash_map<std::string, uint32_t> ids_;
  std::array<uint32_t, 256> id_of_byte_ = {};

  std::vector<uint32_t> symbols_;  // symbols of all words
  std::vector<Word> words_;
  absl::flat_hash_map<Pair, int64_t> counts_;
  std::priority_queue<Candidate> line_;
  std::vector<WordList> lists_;  // word lists of the candidates; emptied when they are merged
  std::vector<Pair> merges_;
  std::vector<Sides> sides_;  // one for each thread
};

absl::Status Check(const BpeTrainerOptions& options) {
  if (options.min_frequency < 0 || options.max_token_length < 0) {
    return absl::InvalidArgumentError("min_frequency and max_token_length must not be negative");
  }
  absl::flat_hash_set<absl::string_view> seen;
  for (const std::string& token : options.special_tokens) {
    if (!seen.insert(token).second)
      return absl::InvalidArgumentError(absl::StrCat("special token '", token, "' stands twice"));
    if (token.empty()) return absl::InvalidArgumentError("a special token is empty");
    if (!IsValidUtf8(token)) return absl::InvalidArgumentError("a special token is not UTF-8");
  }
  return absl::OkStatus();
}

uint32_t Trainer::AddToken(std::string spelling, int32_t length) {
  const auto [found, inserted] = ids_.emplace(spelling, static_cast<uint32_t>(tokens_.size()));
  if (inserted) {
    tokens_.push_back(std::move(spelling));
    lengths_.resize(tokens_.size());
  }
  lengths_[found->second] = length;
  return found->second;
}

absl::Status Trainer::Init(const WordCounts& words) {
  MEGATRON_RETURN_IF_ERROR(Check(options_));
  CHECK_LT(words.size(), std::numeric_limits<uint32_t>::max());
  for (const std::string& token : options_.special_tokens) AddToken(token, 0);
  num_special_tokens_ = num_tokens();
  MEGATRON_RETURN_IF_ERROR(AddAlphabet(words));
  AddWords(words);
  CountPairs();
  return absl::OkStatus();
}

absl::Status Trainer::AddAlphabet(const WordCounts& words) {
  std::array<bool, 256> used;
  used.fill(options_.all_bytes);
  if (!options_.all_bytes) {
    words.ForEach([&](absl::string_view word, int64_t) {
      for (const char c : word) used[static_cast<uint8_t>(c)] = true;
    });
  }
  std::vector<std::pair<std::string, uint8_t>> letters;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (used[byte]) letters.emplace_back(SpellBytes(absl::string_view(&c, 1)), byte);
  }
  // UTF-8 sorts in the order of code points.
  std::sort(letters.begin(), letters.end());
  for (const auto& [letter, byte] : letters) id_of_byte_[byte] = AddToken(letter, 1);
  if (num_tokens() <= options_.vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("vocab_size ", options_.vocab_size, " is too small for ", letters.size(),
                   " bytes and ", options_.special_tokens.size(), " special tokens"));
}

void Trainer::AddWords(const WordCounts& words) {
  words_.reserve(words.size());
  words.ForEach([&](absl::string_view word, int64_t count) {
    CHECK_LT(word.size(), std::numeric_limits<uint32_t>::max());
    words_.push_back({symbols_.size(), static_cast<uint32_t>(word.size()), count});
    for (const char c : word) symbols_.push_back(id_of_byte_[static_cast<uint8_t>(c)]);
  });
}

void Trainer::CountPairs() {
  absl::flat_hash_map<Pair, WordList> lists;
  for (uint32_t w = 0; w < words_.size(); ++w) {
    const Word& word = words_[w];
    for (size_t i = word.begin; i + 1 < word.begin + word.length; ++i) {
      const Pair pair = MakePair(symbols_[i], symbols_[i + 1]);
      counts_[pair] += word.count;
      WordList& list = lists[pair];
      if (list.empty() || list.back() != w) list.push_back(w);
    }
  }
  for (auto& [pair, list] : lists) PutInLine(pair, std::move(list));
}

void Trainer::PutInLine(Pair pair, WordList words) {
  const int64_t count = counts_[pair];
  if (!IsFrequent(count)) return;
  line_.push({count, pair, static_cast<uint32_t>(lists_.size())});
  lists_.push_back(std::move(words));
}

void Trainer::Run(absl::FunctionRef<void(int32_t)> progress) {
  int32_t tokens_at_next_call = 0;
  while (num_tokens() < options_.vocab_size && !line_.empty()) {
    if (num_tokens() >= tokens_at_next_call) {
      progress(num_tokens());
      tokens_at_next_call = num_tokens() + kTokensBetweenCalls;
    }
    const Candidate best = line_.top();
    line_.pop();
    const int64_t count = counts_[best.pair];
    if (count != best.count) {
      if (IsFrequent(count)) line_.push({count, best.pair, best.list});
      continue;
    }
    const uint32_t first = First(best.pair), second = Second(best.pair);
    const uint32_t merged =
        AddToken(absl::StrCat(tokens_[first], tokens_[second]), lengths_[first] + lengths_[second]);
    merges_.push_back(best.pair);
    const WordList words = std::move(lists_[best.list]);
    Merge(best.pair, merged, words);
  }
}

void Trainer::Merge(Pair pair, uint32_t merged, const WordList& words) {
  for (Sides& sides : sides_) {
    sides.left.Resize(tokens_.size());
    sides.right.Resize(tokens_.size());
  }
  const int64_t num_parts = words.size() < kWordsWorthThreads ? 1 : pool_.num_threads();
  const auto merge_part = [&](int64_t part) {
    const size_t begin = words.size() * part / num_parts;
    const size_t end = words.size() * (part + 1) / num_parts;
    for (size_t i = begin; i < end; ++i) MergeInWord(pair, merged, words[i], &sides_[part]);
  };
  if (num_parts == 1) {
    merge_part(0);
  } else {
    pool_.ParallelFor(num_parts, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) merge_part(part);
    });
  }
  for (int64_t part = 1; part < num_parts; ++part) {
    sides_[0].left.Take(&sides_[part].left);
    sides_[0].right.Take(&sides_[part].right);
  }
  UpdateCounts(pair, merged, &sides_[0]);
}

void Trainer::MergeInWord(Pair pair, uint32_t merged, uint32_t word, Sides* sides) {
  const uint32_t first = First(pair), second = Second(pair);
  const int64_t count = words_[word].count;
  uint32_t* const begin = symbols_.data() + words_[word].begin;
  uint32_t* const end = begin + words_[word].length;
  uint32_t* out = begin;
  for (const uint32_t* in = begin; in != end;) {
    if (*in != first || in + 1 == end || in[1] != second) {
      *out++ = *in++;
      continue;
    }
    if (out != begin) sides->left.Add(out[-1], count, word);
    *out++ = merged;
    in += 2;
    if (in != end) sides->right.Add(*in, count, word);
  }
  words_[word].length = static_cast<uint32_t>(out - begin);
}

// Updates the counts after a, b became ab: x a is now x ab, and b y is now ab y. The pairs with ab
// are new: none of them has been queued before, so each is queued once.
void Trainer::UpdateCounts(Pair pair, uint32_t merged, Sides* sides) {
  const auto may_merge = [&](uint32_t symbol) {
    return options_.max_token_length == 0 ||
           lengths_[symbol] + lengths_[merged] < options_.max_token_length;
  };
  for (const uint32_t symbol : sides->left.symbols()) {
    const int64_t count = sides->left[symbol].count;
    counts_[MakePair(symbol, First(pair))] -= count;
    if (may_merge(symbol)) counts_[MakePair(symbol, merged)] += count;
  }
  for (const uint32_t symbol : sides->right.symbols()) {
    const int64_t count = sides->right[symbol].count;
    counts_[MakePair(Second(pair), symbol)] -= count;
    if (may_merge(symbol)) counts_[MakePair(merged, symbol)] += count;
  }
  for (const uint32_t symbol : sides->left.symbols()) {
    WordList& words = sides->left[symbol].words;
    if (may_merge(symbol)) PutInLine(MakePair(symbol, merged), std::move(words));
  }
  for (const uint32_t symbol : sides->right.symbols()) {
    WordList& words = sides->right[symbol].words;
    if (may_merge(symbol)) PutInLine(MakePair(merged, symbol), std::move(words));
  }
  sides->left.Clear();
  sides->right.Clear();
}

TrainedBpe Trainer::Result() {
  TrainedBpe result;
  for (const Pair pair : merges_) result.merges.emplace_back(First(pair), Second(pair));
  result.num_special_tokens = num_special_tokens_;
  result.tokens = std::move(tokens_);
  return result;
}

}  // namespace

absl::StatusOr<TrainedBpe> TrainBpe(const WordCounts& words, const BpeTrainerOptions& options,
                                    ThreadPool* pool,
                                    absl::FunctionRef<void(int32_t num_tokens)> progress) {
  Trainer trainer(options, pool);
  MEGATRON_RETURN_IF_ERROR(trainer.Init(words));
  trainer.Run(progress);
  return trainer.Result();
}

}  // namespace megatron
