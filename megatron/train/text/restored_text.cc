#include "megatron/train/text/restored_text.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

bool IsSentinel(const Tokenizer& tokenizer, int32_t token) {
  const std::vector<int32_t>& sentinels = tokenizer.special().sentinels;
  return std::find(sentinels.begin(), sentinels.end(), token) != sentinels.end();
}

int32_t FirstToken(const SpecialTokens& special) {
  return special.bos >= 0 ? special.bos : special.pad;
}

int32_t LastToken(const SpecialTokens& special) {
  return special.eos >= 0 ? special.eos : special.eod;
}

// Each sentinel may occur once, so that each has a span of its own.
absl::Status CheckSentinels(absl::Span<const int32_t> tokens, const Tokenizer& tokenizer) {
  std::set<int32_t> seen;
  for (const int32_t token : tokens) {
    if (IsSentinel(tokenizer, token) && !seen.insert(token).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the text has ", tokenizer.Piece(token),
                       " twice: each gap needs a sentinel of its own, in the order of the text"));
    }
  }
  return absl::OkStatus();
}

absl::Status NothingWritten(const Tokenizer& tokenizer) {
  const std::vector<int32_t>& sentinels = tokenizer.special().sentinels;
  return absl::InvalidArgumentError(absl::StrCat(
      "the model writes nothing: the text has no gap for it to fill",
      sentinels.empty() ? "" : absl::StrCat(", such as ", tokenizer.Piece(sentinels[0]))));
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> EncodeGaps(const std::string& text, const Tokenizer& tokenizer,
                                                int64_t max_tokens) {
  const SpecialTokens& special = tokenizer.special();
  std::vector<int32_t> tokens = special.before;
  EncodeOptions options;
  options.parse_special = true;
  MEGATRON_RETURN_IF_ERROR(tokenizer.Encode(text, &tokens, options));
  if (tokens.size() == special.before.size())
    return absl::InvalidArgumentError("the text is empty");
  MEGATRON_RETURN_IF_ERROR(CheckSentinels(tokens, tokenizer));
  tokens.insert(tokens.end(), special.after.begin(), special.after.end());
  if (static_cast<int64_t>(tokens.size()) <= max_tokens) return tokens;
  return absl::InvalidArgumentError(absl::StrCat(
      "the text is ", tokens.size(), " tokens long, and the encoder reads ", max_tokens));
}

RestoredText PutTogether(absl::Span<const int32_t> given, absl::Span<const int32_t> written,
                         const Tokenizer& tokenizer) {
  std::map<int32_t, std::vector<int32_t>> spans;
  std::vector<int32_t>* span = nullptr;
  for (const int32_t token : written) {
    if (IsSentinel(tokenizer, token)) {
      span = &spans[token];
      span->clear();
    } else if (span != nullptr) {
      span->push_back(token);
    }
  }
  RestoredText restored;
  restored.written = tokenizer.Decode(written);
  std::vector<int32_t> whole;
  for (const int32_t token : given) {
    if (!IsSentinel(tokenizer, token)) {
      whole.push_back(token);
      continue;
    }
    const std::vector<int32_t>& missing = spans[token];
    whole.insert(whole.end(), missing.begin(), missing.end());
    restored.spans.push_back(tokenizer.Decode(missing));
  }
  restored.text = tokenizer.Decode(whole);
  return restored;
}

absl::StatusOr<RestoredText> RestoreText(const std::string& text, const Tokenizer& tokenizer,
                                         const RestoreOptions& options, TextGenerator* model,
                                         absl::FunctionRef<bool()> go_on) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<int32_t> given,
                            EncodeGaps(text, tokenizer, options.limits.max_encoder_context));
  const int32_t first = FirstToken(tokenizer.special()), last = LastToken(tokenizer.special());
  if (first < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokenizer.name(), " has no token to begin with: neither BOS nor padding"));
  }
  model->Read(given);
  std::vector<int32_t> written = {first};
  const int64_t count = std::min(options.tokens, options.limits.max_context - 1);
  MEGATRON_RETURN_IF_ERROR(
      WithExitCodeOfRank(model->Generate(options.sampling, count, &written,
                                         [&](int32_t token) { return token != last && go_on(); }),
                         kExitNumeric));
  const bool ended = written.back() == last;
  const bool full = static_cast<int64_t>(written.size()) > count;
  if (ended) written.pop_back();
  const SpecialTokens& special = tokenizer.special();
  const auto asked = absl::MakeConstSpan(given).subspan(
      special.before.size(), given.size() - special.before.size() - special.after.size());
  RestoredText restored = PutTogether(asked, absl::MakeConstSpan(written).subspan(1), tokenizer);
  restored.cut_off = full && !ended && count < options.tokens;
  if (written.size() == 1 && restored.spans.empty()) return NothingWritten(tokenizer);
  return restored;
}

std::string FormatSpans(const RestoredText& restored) {
  std::string text;
  for (size_t span = 0; span < restored.spans.size(); ++span)
    absl::StrAppend(&text, span + 1, ". ", restored.spans[span], "\n");
  return text;
}

}  // namespace megatron
