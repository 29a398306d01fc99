#include "megatron/data/tokenizer/pipeline/normalizer.h"

#include <algorithm>
#include <utility>

#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

// The result while it is built.
class Output {
 public:
  Output(absl::string_view text, std::vector<size_t>* origins) : text_(text), origins_(origins) {
    out_.reserve(text.size());
    if (origins_ != nullptr) origins_->clear();
  }

  // Appends text[begin, end) unchanged.
  void Copy(size_t begin, size_t end) {
    out_.append(text_.data() + begin, end - begin);
    if (origins_ == nullptr) return;
    for (size_t at = begin; at < end;) {
      const size_t length = DecodeUtf8(text_, at).length;
      origins_->insert(origins_->end(), length, at);
      at += length;
    }
  }

  // Appends new content that replaces the text at `origin`.
  void Put(absl::string_view content, size_t origin) {
    out_.append(content.data(), content.size());
    if (origins_ != nullptr) origins_->insert(origins_->end(), content.size(), origin);
  }

  std::string Finish() {
    if (origins_ != nullptr) origins_->push_back(text_.size());
    return std::move(out_);
  }

 private:
  const absl::string_view text_;
  std::vector<size_t>* const origins_;
  std::string out_;
};

}  // namespace

Normalizer ChainNormalizers(std::vector<Normalizer> steps) {
  return [steps = std::move(steps)](absl::string_view text, std::vector<size_t>* origins) {
    std::string current(text);
    if (origins != nullptr) {
      origins->resize(text.size() + 1);
      for (size_t at = 0; at < text.size();) {
        const size_t begin = at;
        at += DecodeUtf8(text, at).length;
        for (size_t i = begin; i < at; ++i) (*origins)[i] = begin;
      }
      origins->back() = text.size();
    }
    for (const Normalizer& step : steps) {
      std::vector<size_t> from;
      current = step(current, origins == nullptr ? nullptr : &from);
      if (origins == nullptr) continue;
      for (size_t& origin : from) origin = (*origins)[origin];
      origins->swap(from);
    }
    return current;
  };
}

Normalizer PrependNormalizer(std::string prefix) {
  return [prefix = std::move(prefix)](absl::string_view text, std::vector<size_t>* origins) {
    Output out(text, origins);
    if (!text.empty()) out.Put(prefix, 0);
    out.Copy(0, text.size());
    return out.Finish();
  };
}

Normalizer ReplaceNormalizer(std::string pattern, std::string content) {
  return [pattern = std::move(pattern), content = std::move(content)](
             absl::string_view text, std::vector<size_t>* origins) {
    Output out(text, origins);
    size_t done = 0;
    for (size_t at = text.find(pattern); at != absl::string_view::npos;
         at = text.find(pattern, done)) {
      out.Copy(done, at);
      out.Put(content, at);
      done = at + pattern.size();
    }
    out.Copy(done, text.size());
    return out.Finish();
  };
}

Normalizer ReplaceSpacesNormalizer(std::string content) {
  return [content = std::move(content)](absl::string_view text, std::vector<size_t>* origins) {
    Output out(text, origins);
    size_t done = 0;
    for (size_t at = text.find("  "); at != absl::string_view::npos; at = text.find("  ", done)) {
      out.Copy(done, at);
      out.Put(content, at);
      done = std::min(text.find_first_not_of(' ', at), text.size());
    }
    out.Copy(done, text.size());
    return out.Finish();
  };
}

Normalizer StripNormalizer(bool left, bool right) {
  return [left, right](absl::string_view text, std::vector<size_t>* origins) {
    // Begin and end of the text without the white space.
    size_t first = text.size(), behind_last = 0;
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = DecodeUtf8(text, at);
      if (!CharClasses::Get().Is(c.code_point, kWhiteSpace)) {
        if (behind_last == 0) first = at;
        behind_last = at + c.length;
      }
      at += c.length;
    }
    const size_t begin = left ? first : 0;
    const size_t end = right ? behind_last : text.size();
    Output out(text, origins);
    if (begin < end) out.Copy(begin, end);
    return out.Finish();
  };
}

Normalizer StripAccentsNormalizer() {
  return [](absl::string_view text, std::vector<size_t>* origins) {
    Output out(text, origins);
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = DecodeUtf8(text, at);
      if (!CharClasses::Get().Is(c.code_point, kMark)) out.Copy(at, at + c.length);
      at += c.length;
    }
    return out.Finish();
  };
}

}  // namespace megatron
