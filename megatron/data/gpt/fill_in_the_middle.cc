#include "megatron/data/gpt/fill_in_the_middle.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

absl::Status CheckRate(absl::string_view name, double rate) {
  if (rate >= 0 && rate <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " ", rate, " is not in [0, 1]"));
}

absl::StatusOr<int32_t> TokenId(const Tokenizer& tokenizer, absl::string_view spelling) {
  std::vector<int32_t> ids;
  EncodeOptions options;
  options.parse_special = true;
  MEGATRON_RETURN_IF_ERROR(tokenizer.Encode(spelling, &ids, options));
  if (ids.size() == 1) return ids[0];
  return absl::InvalidArgumentError(absl::StrCat("'", spelling, "' is ", ids.size(), " tokens of ",
                                                 tokenizer.name(),
                                                 ", but fill-in-the-middle needs it to be one"));
}

// Returns the positions at which the characters of `text` begin, and its end. In invalid UTF-8,
// continuation bytes belong to what precedes them.
std::vector<size_t> CharacterBounds(absl::string_view text) {
  std::vector<size_t> bounds;
  bounds.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (i == 0 || (static_cast<uint8_t>(text[i]) & 0xc0) != 0x80) bounds.push_back(i);
  }
  bounds.push_back(text.size());
  return bounds;
}

// Calls add(part) for the parts of `tokens` between separators, and appends a separator after each
// part but the last. Empty parts before a separator vanish together with it, as in Megatron.
absl::Status ForEachPart(absl::Span<const int32_t> tokens, int32_t separator,
                         std::vector<int32_t>* out,
                         absl::FunctionRef<absl::Status(absl::Span<const int32_t> part)> add) {
  auto begin = tokens.begin();
  for (auto end = std::find(begin, tokens.end(), separator); end != tokens.end();
       end = std::find(begin, tokens.end(), separator)) {
    if (end != begin) {
      MEGATRON_RETURN_IF_ERROR(add(tokens.subspan(begin - tokens.begin(), end - begin)));
      out->push_back(separator);
    }
    begin = end + 1;
  }
  return add(tokens.subspan(begin - tokens.begin()));
}

}  // namespace

absl::StatusOr<FillInTheMiddle> FillInTheMiddle::Create(std::shared_ptr<const Tokenizer> tokenizer,
                                                        const FillInTheMiddleOptions& options) {
  MEGATRON_RETURN_IF_ERROR(CheckRate("fim_rate", options.rate));
  MEGATRON_RETURN_IF_ERROR(CheckRate("fim_spm_rate", options.spm_rate));
  MEGATRON_RETURN_IF_ERROR(CheckRate("fim_fragment_rate", options.fragment_rate));
  Ids ids;
  MEGATRON_ASSIGN_OR_RETURN(ids.prefix, TokenId(*tokenizer, options.prefix_token));
  MEGATRON_ASSIGN_OR_RETURN(ids.middle, TokenId(*tokenizer, options.middle_token));
  MEGATRON_ASSIGN_OR_RETURN(ids.suffix, TokenId(*tokenizer, options.suffix_token));
  MEGATRON_ASSIGN_OR_RETURN(ids.pad, TokenId(*tokenizer, options.pad_token));
  MEGATRON_ASSIGN_OR_RETURN(ids.eod, TokenId(*tokenizer, options.eod_token));
  ids.split = -1;
  if (!options.split_token.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(ids.split, TokenId(*tokenizer, options.split_token));
  }
  return FillInTheMiddle(std::move(tokenizer), options, ids);
}

absl::StatusOr<int64_t> FillInTheMiddle::Apply(int64_t index, absl::Span<int32_t> tokens) const {
  NumpyRandomState random(options_.seed + static_cast<uint32_t>(index));
  std::vector<int32_t> result;
  result.reserve(tokens.size() + 64);
  MEGATRON_RETURN_IF_ERROR(ForEachPart(tokens, ids_.eod, &result, [&](Tokens segment) {
    return AddSegment(segment, &random, &result);
  }));
  const size_t num_tokens = std::min(result.size(), tokens.size());
  result.resize(tokens.size(), ids_.pad);
  std::copy(result.begin(), result.end(), tokens.begin());
  return static_cast<int64_t>(num_tokens);
}

absl::Status FillInTheMiddle::AddSegment(Tokens segment, NumpyRandomState* random,
                                         std::vector<int32_t>* out) const {
  const bool split = !options_.split_token.empty() &&
                     std::find(segment.begin(), segment.end(), ids_.split) != segment.end();
  if (!split) return AddPermuted(segment, options_.rate, random, out);
  if (!random->Bernoulli(options_.rate)) {
    out->insert(out->end(), segment.begin(), segment.end());
    return absl::OkStatus();
  }
  return ForEachPart(segment, ids_.split, out, [&](Tokens fragment) {
    return AddPermuted(fragment, options_.fragment_rate, random, out);
  });
}

absl::Status FillInTheMiddle::AddPermuted(Tokens fragment, double rate, NumpyRandomState* random,
                                          std::vector<int32_t>* out) const {
  const bool chosen = random->Bernoulli(rate);
  const std::string text = chosen ? tokenizer_->Decode(fragment) : "";
  if (!chosen || (!options_.no_prefix.empty() && absl::StartsWith(text, options_.no_prefix))) {
    out->insert(out->end(), fragment.begin(), fragment.end());
    return absl::OkStatus();
  }
  const std::vector<size_t> bounds = CharacterBounds(text);
  const auto draw_bound = [&] { return bounds[random->Bounded(bounds.size() - 1)]; };
  size_t begin = draw_bound();
  size_t end = draw_bound();
  if (begin > end) std::swap(begin, end);
  const absl::string_view prefix = absl::string_view(text).substr(0, begin);
  const absl::string_view middle = absl::string_view(text).substr(begin, end - begin);
  const absl::string_view suffix = absl::string_view(text).substr(end);

  EncodeOptions encode;
  encode.parse_special = true;
  out->push_back(ids_.prefix);
  const bool suffix_first = random->Bernoulli(options_.spm_rate);
  if (!suffix_first) {
    MEGATRON_RETURN_IF_ERROR(tokenizer_->Encode(prefix, out, encode));
  }
  out->push_back(ids_.suffix);
  MEGATRON_RETURN_IF_ERROR(tokenizer_->Encode(suffix, out, encode));
  out->push_back(ids_.middle);
  if (suffix_first) {
    MEGATRON_RETURN_IF_ERROR(tokenizer_->Encode(prefix, out, encode));
  }
  return tokenizer_->Encode(middle, out, encode);
}

}  // namespace megatron
