#include "megatron/train/text/masked_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/sampling.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

using Guess = std::pair<int32_t, double>;

// Returns the likeliest tokens; of equally likely ones, the one with the lower id is first.
std::vector<Guess> Likeliest(absl::Span<const float> logits, int count) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto kept = std::min(order.size(), static_cast<size_t>(count));
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  const double max = logits[order[0]];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  std::vector<Guess> guesses;
  for (size_t i = 0; i < kept; ++i)
    guesses.emplace_back(order[i], std::exp(logits[order[i]] - max) / sum);
  return guesses;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> EncodeMasks(const std::string& text,
                                                 const Tokenizer& tokenizer, int64_t max_tokens) {
  const SpecialTokens& special = tokenizer.special();
  if (special.cls < 0 || special.sep < 0 || special.mask < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokenizer.name(), " has no [CLS], [SEP] and [MASK]"));
  }
  std::vector<int32_t> tokens = {special.cls};
  EncodeOptions options;
  options.parse_special = true;
  MEGATRON_RETURN_IF_ERROR(tokenizer.Encode(text, &tokens, options));
  tokens.push_back(special.sep);
  if (static_cast<int64_t>(tokens.size()) > max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the text is ", tokens.size(), " tokens long, and the model was trained on ", max_tokens));
  }
  if (std::count(tokens.begin(), tokens.end(), special.mask) == 0)
    return absl::InvalidArgumentError("the text has no [MASK]");
  return tokens;
}

absl::StatusOr<FilledText> FillMasks(const std::string& text, int num_guesses,
                                     const Tokenizer& tokenizer, int64_t max_tokens,
                                     TextGenerator* model) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                            EncodeMasks(text, tokenizer, max_tokens));
  FilledText filled;
  std::vector<int32_t> whole = tokens;
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (tokens[t] != tokenizer.special().mask) continue;
    const absl::Span<const float> logits = model->LogitsAt(tokens, static_cast<int64_t>(t));
    if (logits.empty()) return absl::UnavailableError("a rank was lost");
    MEGATRON_RETURN_IF_ERROR(WithExitCode(
        CheckLogits(logits.data(), static_cast<int64_t>(logits.size())), kExitNumeric));
    const std::vector<Guess> guesses = Likeliest(logits, num_guesses);
    whole[t] = guesses[0].first;
    filled.guesses.emplace_back();
    for (const auto& [token, probability] : guesses)
      filled.guesses.back().emplace_back(tokenizer.Piece(token), probability);
  }
  filled.text = tokenizer.Decode(absl::MakeConstSpan(whole).subspan(1, whole.size() - 2));
  return filled;
}

std::string FormatGuesses(const FilledText& filled) {
  std::string text;
  for (size_t gap = 0; gap < filled.guesses.size(); ++gap) {
    absl::StrAppend(&text, gap + 1, ".");
    for (const auto& [piece, probability] : filled.guesses[gap])
      absl::StrAppendFormat(&text, " %s %.2f", piece, probability);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace megatron
