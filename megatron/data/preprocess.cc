#include "megatron/data/preprocess.h"

#include <cstddef>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/data/indexed_dataset_writer.h"
#include "megatron/data/json_text.h"
#include "megatron/data/token_type.h"

namespace megatron {
namespace {

constexpr size_t kBytesPerWorker = size_t{1} << 20;
constexpr size_t kBadLinesShown = 10;

// Cuts a stream into lines, many at a time.
class LineReader {
 public:
  LineReader(std::istream& input, size_t batch_bytes) : input_(input), batch_bytes_(batch_bytes) {}

  // The next lines, without their ends, valid until the next call; none at the end of the input.
  // The last line may lack its end.
  absl::StatusOr<absl::Span<const absl::string_view>> Next() {
    lines_.clear();
    buffer_.erase(0, consumed_);
    consumed_ = 0;
    size_t searched = 0;
    while (lines_.empty() && !at_end_) {
      MEGATRON_RETURN_IF_ERROR(ReadMore());
      // The first round looks at the whole buffer, later ones at what came new: long lines cost no
      // more than short ones.
      Cut(std::exchange(searched, buffer_.size()));
    }
    if (at_end_ && consumed_ < buffer_.size()) {
      lines_.push_back(absl::string_view(buffer_).substr(consumed_));
      consumed_ = buffer_.size();
    }
    return absl::MakeConstSpan(lines_);
  }

 private:
  absl::Status ReadMore() {
    const size_t old_size = buffer_.size();
    buffer_.resize(old_size + batch_bytes_);
    input_.read(&buffer_[old_size], static_cast<std::streamsize>(batch_bytes_));
    buffer_.resize(old_size + static_cast<size_t>(input_.gcount()));
    if (input_.bad()) return absl::DataLossError("the input can't be read any further");
    at_end_ = input_.eof();
    return absl::OkStatus();
  }

  void Cut(size_t search_from) {
    const absl::string_view text = buffer_;
    for (size_t end = text.find('\n', search_from); end != text.npos;
         end = text.find('\n', consumed_)) {
      lines_.push_back(text.substr(consumed_, end - consumed_));
      consumed_ = end + 1;
    }
  }

  std::istream& input_;
  const size_t batch_bytes_;
  std::string buffer_;
  size_t consumed_ = 0;
  bool at_end_ = false;
  std::vector<absl::string_view> lines_;
};

// What one worker made of its share of a batch. Kept from batch to batch for its memory.
struct Share {
  struct BadLine {
    int64_t line;  // in the batch
    std::string reason;
  };

  std::vector<std::vector<int32_t>> tokens;  // for each key those of all its documents
  std::vector<std::vector<size_t>> lengths;  // for each key those of its documents
  std::vector<BadLine> bad_lines;
  std::vector<std::string> texts;

  void Clear(size_t num_keys) {
    tokens.resize(num_keys);
    lengths.resize(num_keys);
    for (auto& of_key : tokens) of_key.clear();
    for (auto& of_key : lengths) of_key.clear();
    bad_lines.clear();
  }
};

class Preprocessor {
 public:
  Preprocessor(const Tokenizer& tokenizer, const PreprocessOptions& options)
      : tokenizer_(tokenizer),
        options_(options),
        pool_(options.workers),
        shares_(options.workers) {}

  absl::Status OpenWriters(FileSystem& fs) {
    for (const std::string& key : options_.json_keys) {
      MEGATRON_ASSIGN_OR_RETURN(auto writer,
                                IndexedDatasetWriter::Create(
                                    fs, absl::StrCat(options_.output_prefix, "_", key, "_document"),
                                    SmallestTokenType(tokenizer_.vocab_size())));
      writers_.push_back(std::move(writer));
    }
    return absl::OkStatus();
  }

  // Tokenizes in parallel, writes in order.
  absl::Status AddBatch(absl::Span<const absl::string_view> lines) {
    const int64_t num_shares = static_cast<int64_t>(shares_.size());
    const int64_t num_lines = static_cast<int64_t>(lines.size());
    pool_.ParallelFor(num_shares, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Tokenize(lines, num_lines * i / num_shares, num_lines * (i + 1) / num_shares, &shares_[i]);
      }
    });
    for (const Share& share : shares_) {
      MEGATRON_RETURN_IF_ERROR(RecordBadLines(share));
      MEGATRON_RETURN_IF_ERROR(Write(share));
    }
    report_.lines += num_lines;
    for (const absl::string_view line : lines)
      report_.bytes += static_cast<int64_t>(line.size()) + 1;
    return absl::OkStatus();
  }

  // Makes the datasets visible. An empty one would fail only in training, far from its cause.
  absl::Status Finalize() {
    if (report_.documents == 0) {
      const std::string first_bad =
          report_.bad_lines == 0 ? "" : absl::StrCat("; ", report_.first_bad_lines[0]);
      return absl::DataLossError(absl::StrCat(
          "there is no document in the input; lines read: ", report_.lines, first_bad));
    }
    for (const auto& writer : writers_) MEGATRON_RETURN_IF_ERROR(writer->Finalize());
    return absl::OkStatus();
  }

  const PreprocessReport& report() const { return report_; }

 private:
  void Tokenize(absl::Span<const absl::string_view> lines, int64_t begin, int64_t end,
                Share* share) const {
    share->Clear(options_.json_keys.size());
    for (int64_t i = begin; i < end; ++i) {
      if (absl::StripAsciiWhitespace(lines[i]).empty()) continue;
      const absl::Status status = TokenizeLine(lines[i], share);
      if (!status.ok()) share->bad_lines.push_back({i, std::string(status.message())});
    }
  }

  // Adds a document for every key, or for none.
  absl::Status TokenizeLine(absl::string_view line, Share* share) const {
    MEGATRON_RETURN_IF_ERROR(ExtractJsonTexts(line, options_.json_keys, &share->texts));
    const size_t num_keys = options_.json_keys.size();
    for (size_t key = 0; key < num_keys; ++key) {
      std::vector<int32_t>& tokens = share->tokens[key];
      const size_t old_size = tokens.size();
      const absl::Status status = tokenizer_.Encode(share->texts[key], &tokens);
      if (!status.ok()) {
        for (size_t earlier = 0; earlier < key; ++earlier) {
          share->tokens[earlier].resize(share->tokens[earlier].size() -
                                        share->lengths[earlier].back());
          share->lengths[earlier].pop_back();
        }
        return status;
      }
      if (options_.append_eod && tokens.size() > old_size) tokens.push_back(tokenizer_.eod());
      share->lengths[key].push_back(tokens.size() - old_size);
    }
    return absl::OkStatus();
  }

  absl::Status RecordBadLines(const Share& share) {
    for (const Share::BadLine& bad : share.bad_lines) {
      const std::string message =
          absl::StrCat("line ", report_.lines + bad.line + 1, ": ", bad.reason);
      if (!options_.skip_bad_lines) return absl::DataLossError(message);
      ++report_.bad_lines;
      if (report_.first_bad_lines.size() < kBadLinesShown)
        report_.first_bad_lines.push_back(message);
    }
    return absl::OkStatus();
  }

  absl::Status Write(const Share& share) {
    report_.documents += static_cast<int64_t>(share.lengths[0].size());
    for (size_t key = 0; key < writers_.size(); ++key) {
      absl::Span<const int32_t> tokens = share.tokens[key];
      report_.tokens += static_cast<int64_t>(tokens.size());
      for (const size_t length : share.lengths[key]) {
        MEGATRON_RETURN_IF_ERROR(writers_[key]->AddDocument(tokens.first(length)));
        tokens.remove_prefix(length);
      }
    }
    return absl::OkStatus();
  }

  const Tokenizer& tokenizer_;
  const PreprocessOptions& options_;
  ThreadPool pool_;
  std::vector<Share> shares_;
  std::vector<std::unique_ptr<IndexedDatasetWriter>> writers_;  // one for each key
  PreprocessReport report_;
};

absl::Status CheckOptions(const PreprocessOptions& options) {
  if (options.output_prefix.empty()) return absl::InvalidArgumentError("no output prefix");
  if (options.workers < 1)
    return absl::InvalidArgumentError(absl::StrCat(options.workers, " workers"));
  if (options.json_keys.empty()) return absl::InvalidArgumentError("no JSON keys");
  std::set<std::string> keys;
  for (const std::string& key : options.json_keys) {
    if (key.empty() || key.find('/') != key.npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("JSON key '", key, "' can't be part of a file name"));
    }
    if (!keys.insert(key).second)
      return absl::InvalidArgumentError(absl::StrCat("JSON key '", key, "' stands twice"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PreprocessReport> PreprocessJsonLines(
    std::istream& input, const Tokenizer& tokenizer, const PreprocessOptions& options,
    FileSystem& fs, absl::FunctionRef<bool(const PreprocessReport&)> keep_going) {
  MEGATRON_RETURN_IF_ERROR(CheckOptions(options));
  Preprocessor preprocessor(tokenizer, options);
  MEGATRON_RETURN_IF_ERROR(preprocessor.OpenWriters(fs));
  LineReader reader(input, kBytesPerWorker * static_cast<size_t>(options.workers));
  while (true) {
    MEGATRON_ASSIGN_OR_RETURN(const absl::Span<const absl::string_view> lines, reader.Next());
    if (lines.empty()) break;
    MEGATRON_RETURN_IF_ERROR(preprocessor.AddBatch(lines));
    if (!keep_going(preprocessor.report())) return absl::CancelledError("interrupted");
  }
  MEGATRON_RETURN_IF_ERROR(preprocessor.Finalize());
  return preprocessor.report();
}

}  // namespace megatron
