#include "megatron/data/tokenizer/pipeline/pipeline_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

AddedTokens Those(const std::vector<AddedToken>& tokens, bool normalized,
                  const Normalizer& normalizer) {
  std::vector<AddedToken> those;
  for (AddedToken token : tokens) {
    if (token.normalized != normalized) continue;
    if (normalized && normalizer != nullptr) token.content = normalizer(token.content, nullptr);
    if (!token.content.empty()) those.push_back(std::move(token));
  }
  return AddedTokens(std::move(those));
}

// Returns the bytes of a text from which the bytes [begin, end) of its normalized form come.
TextSpan OriginOf(TextSpan span, const std::vector<size_t>& origins) {
  if (span.begin == span.end) return {origins[span.begin], origins[span.begin]};
  const size_t last = origins[span.end - 1];
  auto end = origins.begin() + span.end;
  if (*end == last) end = std::upper_bound(end, origins.end() - 1, last);
  return {origins[span.begin], *end};
}

}  // namespace

PipelineTokenizer::PipelineTokenizer(PipelineParts parts)
    : parts_(std::move(parts)),
      in_text_(Those(parts_.added, false, parts_.normalizer)),
      in_normalized_(Those(parts_.added, true, parts_.normalizer)) {}

absl::Status PipelineTokenizer::DoEncode(absl::string_view text, const EncodeOptions& options,
                                         std::vector<int32_t>* ids) const {
  const size_t old_ids = ids->size();
  const size_t old_spans = options.spans == nullptr ? 0 : options.spans->size();
  for (const AddedTokens::Section& section : in_text_.Split(text, options.parse_special)) {
    if (section.id >= 0) {
      ids->push_back(section.id);
      if (options.spans != nullptr) options.spans->push_back(section.span);
      continue;
    }
    const absl::Status status = EncodeSection(text, section.span, options, ids);
    if (status.ok()) continue;
    ids->resize(old_ids);
    if (options.spans != nullptr) options.spans->resize(old_spans);
    return status;
  }
  return absl::OkStatus();
}

absl::Status PipelineTokenizer::EncodeSection(absl::string_view text, TextSpan span,
                                              const EncodeOptions& options,
                                              std::vector<int32_t>* ids) const {
  const size_t old_spans = options.spans == nullptr ? 0 : options.spans->size();
  const absl::string_view section = text.substr(span.begin, span.end - span.begin);
  const bool first = span.begin == 0;
  if (parts_.normalizer == nullptr) {
    MEGATRON_RETURN_IF_ERROR(EncodeNormalized(section, first, options, ids));
  } else {
    std::vector<size_t> origins;
    const std::string normalized =
        parts_.normalizer(section, options.spans == nullptr ? nullptr : &origins);
    MEGATRON_RETURN_IF_ERROR(EncodeNormalized(normalized, first, options, ids));
    if (options.spans != nullptr) {
      for (size_t i = old_spans; i < options.spans->size(); ++i) {
        (*options.spans)[i] = OriginOf((*options.spans)[i], origins);
      }
    }
  }
  if (options.spans == nullptr || span.begin == 0) return absl::OkStatus();
  for (size_t i = old_spans; i < options.spans->size(); ++i) {
    (*options.spans)[i].begin += span.begin;
    (*options.spans)[i].end += span.begin;
  }
  return absl::OkStatus();
}

absl::Status PipelineTokenizer::EncodeNormalized(absl::string_view text, bool first,
                                                 const EncodeOptions& options,
                                                 std::vector<int32_t>* ids) const {
  if (in_normalized_.empty()) return parts_.model->Encode(text, first, ids, options.spans);
  for (const AddedTokens::Section& section : in_normalized_.Split(text, options.parse_special)) {
    const TextSpan span = section.span;
    if (section.id >= 0) {
      ids->push_back(section.id);
      if (options.spans != nullptr) options.spans->push_back(span);
      continue;
    }
    const size_t old_spans = options.spans == nullptr ? 0 : options.spans->size();
    MEGATRON_RETURN_IF_ERROR(parts_.model->Encode(text.substr(span.begin, span.end - span.begin),
                                                  first && span.begin == 0, ids, options.spans));
    for (size_t i = old_spans; options.spans != nullptr && i < options.spans->size(); ++i) {
      (*options.spans)[i].begin += span.begin;
      (*options.spans)[i].end += span.begin;
    }
  }
  return absl::OkStatus();
}

std::string PipelineTokenizer::Decode(absl::Span<const int32_t> ids) const {
  std::vector<std::string> pieces;
  pieces.reserve(ids.size());
  for (const int32_t id : ids) {
    pieces.push_back(0 <= id && id < vocab_size() ? parts_.pieces[id] : "\xEF\xBF\xBD");
  }
  if (parts_.decoder == nullptr) return absl::StrJoin(pieces, " ");
  parts_.decoder(&pieces);
  return absl::StrJoin(pieces, "");
}

std::string PipelineTokenizer::Piece(int32_t id) const {
  return 0 <= id && id < vocab_size() ? parts_.pieces[id] : std::string();
}

}  // namespace megatron
