#include "megatron/data/text/preprocess.h"

#include <cstddef>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/indexed/indexed_dataset_writer.h"
#include "megatron/data/indexed/token_type.h"
#include "megatron/data/io/ordered_pipeline.h"
#include "megatron/data/text/json_text.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

constexpr size_t kBadLinesShown = 10;
constexpr int64_t kBytesUnderWayPerWorker = int64_t{2} << 20;
// Memory that a slot keeps for its next batch; the memory of a longer line is released.
constexpr size_t kKeptBytes = size_t{8} << 20;

template <typename Container>
void ClearAndBound(Container* container) {
  container->clear();
  if (container->capacity() * sizeof(*container->data()) > kKeptBytes) container->shrink_to_fit();
}

// The tokens of one batch of lines.
struct TokenizedBatch {
  struct OfKey {
    std::vector<int32_t> tokens;    // tokens of all its documents
    std::vector<size_t> sequences;  // length of each sequence, never 0
    std::vector<size_t> documents;  // number of sequences of each document
  };
  struct BadLine {
    size_t index;  // index of the line in the batch
    BadLineKind kind;
    std::string reason;
  };

  LineBatch lines;
  std::vector<OfKey> keys;
  std::vector<BadLine> bad_lines;

  // Clears everything, and releases large buffers.
  void Clear() {
    lines.lines.clear();
    ClearAndBound(&lines.buffer);
    for (OfKey& key : keys) {
      ClearAndBound(&key.tokens);
      ClearAndBound(&key.sequences);
      key.documents.clear();
    }
    bad_lines.clear();
  }
};

// Turns lines into tokens. Any number of threads may share one.
class LineTokenizer {
 public:
  LineTokenizer(const Tokenizer& tokenizer, const PreprocessOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  void Tokenize(TokenizedBatch* batch) const {
    batch->keys.resize(options_.json_keys.size());
    Scratch scratch;
    for (size_t i = 0; i < batch->lines.lines.size(); ++i) {
      const LineBatch::Line& line = batch->lines.lines[i];
      BadLineKind kind = BadLineKind::kTooLong;
      if (line.too_long) {
        batch->bad_lines.push_back({i, kind, "it is longer than --max_line_bytes"});
        continue;
      }
      if (IsBlankJsonLine(line.text)) continue;
      const absl::Status status = TokenizeLine(line.text, &scratch, batch, &kind);
      if (!status.ok()) batch->bad_lines.push_back({i, kind, std::string(status.message())});
    }
  }

 private:
  struct Scratch {
    std::vector<JsonText> texts;
    std::vector<absl::string_view> sentences;
  };

  // Adds a document for every key, or for none.
  absl::Status TokenizeLine(absl::string_view line, Scratch* scratch, TokenizedBatch* batch,
                            BadLineKind* kind) const {
    MEGATRON_RETURN_IF_ERROR(ExtractJsonTexts(line, options_.json_keys, &scratch->texts, kind));
    *kind = BadLineKind::kRefusedByTokenizer;
    for (size_t key = 0; key < options_.json_keys.size(); ++key) {
      FindSentences(scratch->texts[key], &scratch->sentences);
      const absl::Status status = AddDocument(scratch->sentences, &batch->keys[key]);
      if (!status.ok()) {
        for (size_t earlier = 0; earlier < key; ++earlier)
          RemoveLastDocument(&batch->keys[earlier]);
        return status;
      }
    }
    return absl::OkStatus();
  }

  void FindSentences(const JsonText& text, std::vector<absl::string_view>* sentences) const {
    if (options_.split_sentences && !text.is_list)
      return SplitSentences(text.text, options_.splitter, sentences);
    sentences->clear();
    size_t begin = 0;
    for (const size_t end : text.ends) {
      sentences->push_back(absl::string_view(text.text).substr(begin, end - begin));
      begin = end;
    }
  }

  // Adds the whole document, or nothing.
  absl::Status AddDocument(const std::vector<absl::string_view>& sentences,
                           TokenizedBatch::OfKey* key) const {
    size_t sequences = 0;
    for (const absl::string_view sentence : sentences) {
      const size_t old_size = key->tokens.size();
      if (options_.prepend_bos) key->tokens.push_back(tokenizer_.special().bos);
      EncodeOptions encoding;
      encoding.parse_special = options_.parse_special;
      const absl::Status status = tokenizer_.Encode(sentence, &key->tokens, encoding);
      if (!status.ok()) {
        key->tokens.resize(old_size);
        key->documents.push_back(sequences);
        RemoveLastDocument(key);
        return status;
      }
      if (key->tokens.size() == old_size) continue;
      key->sequences.push_back(key->tokens.size() - old_size);
      ++sequences;
    }
    if (options_.append_eod && sequences > 0) {
      key->tokens.push_back(tokenizer_.eod());
      ++key->sequences.back();
    }
    key->documents.push_back(sequences);
    return absl::OkStatus();
  }

  static void RemoveLastDocument(TokenizedBatch::OfKey* key) {
    for (; key->documents.back() > 0; --key->documents.back()) {
      key->tokens.resize(key->tokens.size() - key->sequences.back());
      key->sequences.pop_back();
    }
    key->documents.pop_back();
  }

  const Tokenizer& tokenizer_;
  const PreprocessOptions& options_;
};

// Writes batches in their order and counts.
class BatchWriter {
 public:
  explicit BatchWriter(const PreprocessOptions& options) : options_(options) {}

  absl::Status Open(FileSystem& fs, TokenType type) {
    for (const std::string& key : options_.json_keys) {
      MEGATRON_ASSIGN_OR_RETURN(
          auto writer, IndexedDatasetWriter::Create(fs, DatasetPrefix(options_, key), type));
      writers_.push_back(std::move(writer));
    }
    return absl::OkStatus();
  }

  absl::Status Write(const TokenizedBatch& batch) {
    MEGATRON_RETURN_IF_ERROR(RecordBadLines(batch));
    for (size_t key = 0; key < writers_.size(); ++key)
      MEGATRON_RETURN_IF_ERROR(WriteDocuments(batch.keys[key], *writers_[key]));
    const LineBatch& lines = batch.lines;
    report_.documents += static_cast<int64_t>(batch.keys[0].documents.size());
    report_.lines += static_cast<int64_t>(lines.lines.size());
    for (const LineBatch::Line& line : lines.lines)
      report_.bytes += static_cast<int64_t>(line.text.size()) + 1;
    report_.stored_bytes_read = lines.stored_bytes_read;
    return absl::OkStatus();
  }

  // Makes the datasets visible. An empty dataset is refused here, as it would fail only in
  // training, far from its cause.
  absl::Status Finalize() {
    if (report_.documents == 0) {
      const std::string first_bad =
          report_.bad_lines == 0 ? "" : absl::StrCat("; ", report_.first_bad_lines[0]);
      return absl::DataLossError(absl::StrCat(
          "there is no document in the input; lines read: ", report_.lines, first_bad));
    }
    // Everything that can run out of space happens before any dataset is visible.
    for (const auto& writer : writers_) MEGATRON_RETURN_IF_ERROR(writer->Prepare());
    for (const auto& writer : writers_) MEGATRON_RETURN_IF_ERROR(writer->Finalize());
    return absl::OkStatus();
  }

  const PreprocessReport& report() const { return report_; }

 private:
  absl::Status RecordBadLines(const TokenizedBatch& batch) {
    for (const TokenizedBatch::BadLine& bad : batch.bad_lines) {
      const std::string message =
          absl::StrCat(batch.lines.path == "-" ? "stdin" : batch.lines.path, ", line ",
                       batch.lines.first_line + static_cast<int64_t>(bad.index), ": ", bad.reason);
      if (!options_.skip_bad_lines) return absl::DataLossError(message);
      ++report_.bad_lines;
      ++report_.bad_lines_by_kind[static_cast<size_t>(bad.kind)];
      if (report_.first_bad_lines.size() < kBadLinesShown)
        report_.first_bad_lines.push_back(message);
    }
    return absl::OkStatus();
  }

  absl::Status WriteDocuments(const TokenizedBatch::OfKey& key, IndexedDatasetWriter& writer) {
    absl::Span<const int32_t> tokens = key.tokens;
    absl::Span<const size_t> sequences = key.sequences;
    for (const size_t count : key.documents) {
      for (const size_t length : sequences.first(count)) {
        MEGATRON_RETURN_IF_ERROR(writer.AddSequence(tokens.first(length)));
        tokens.remove_prefix(length);
      }
      writer.EndDocument();
      sequences.remove_prefix(count);
    }
    report_.tokens += static_cast<int64_t>(key.tokens.size());
    report_.sequences += static_cast<int64_t>(key.sequences.size());
    return absl::OkStatus();
  }

  const PreprocessOptions& options_;
  std::vector<std::unique_ptr<IndexedDatasetWriter>> writers_;  // one for each key
  PreprocessReport report_;
};

}  // namespace

absl::Status CheckPreprocessOptions(const PreprocessOptions& options, const Tokenizer& tokenizer) {
  if (options.output_prefix.empty()) return absl::InvalidArgumentError("no output prefix");
  if (options.workers < 1)
    return absl::InvalidArgumentError(absl::StrCat(options.workers, " workers"));
  if (options.append_eod && tokenizer.eod() < 0) {
    return absl::InvalidArgumentError("append_eod, but the tokenizer has no end-of-document token");
  }
  if (options.prepend_bos && tokenizer.special().bos < 0) {
    return absl::InvalidArgumentError(
        "prepend_bos, but the tokenizer has no beginning-of-text token");
  }
  if (options.json_keys.empty()) return absl::InvalidArgumentError("no JSON keys");
  std::set<std::string> keys;
  for (const std::string& key : options.json_keys) {
    if (key.empty() || key.find('/') != key.npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("JSON key '", key, "' can't be part of a file name"));
    }
    if (!IsValidUtf8(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("JSON key '", absl::CHexEscape(key), "' is not UTF-8, as all of JSON is"));
    }
    if (!keys.insert(key).second)
      return absl::InvalidArgumentError(absl::StrCat("JSON key '", key, "' stands twice"));
  }
  return absl::OkStatus();
}

std::string DatasetPrefix(const PreprocessOptions& options, const std::string& key) {
  return absl::StrCat(options.output_prefix, "_", key,
                      options.split_sentences ? "_sentence" : "_document");
}

absl::StatusOr<PreprocessReport> PreprocessJsonLines(
    LineBatchReader& input, const Tokenizer& tokenizer, const PreprocessOptions& options,
    FileSystem& fs, absl::FunctionRef<bool(const PreprocessReport&)> keep_going) {
  MEGATRON_RETURN_IF_ERROR(CheckPreprocessOptions(options, tokenizer));
  const LineTokenizer line_tokenizer(tokenizer, options);
  BatchWriter writer(options);
  MEGATRON_RETURN_IF_ERROR(writer.Open(fs, SmallestTokenType(tokenizer.vocab_size())));
  OrderedPipeline pipeline;
  pipeline.workers = options.workers;
  pipeline.slots = 2 * static_cast<size_t>(options.workers) + 2;
  pipeline.max_weight = kBytesUnderWayPerWorker * (options.workers + 1);
  std::vector<TokenizedBatch> batches(pipeline.slots);
  pipeline.fetch = [&](size_t slot) -> absl::StatusOr<int64_t> {
    LineBatch& lines = batches[slot].lines;
    MEGATRON_ASSIGN_OR_RETURN(const bool more, input.Next(&lines));
    return more ? static_cast<int64_t>(lines.buffer.size()) + 1 : 0;
  };
  pipeline.work = [&](size_t slot) { line_tokenizer.Tokenize(&batches[slot]); };
  pipeline.take = [&](size_t slot) {
    const absl::Status status = writer.Write(batches[slot]);
    batches[slot].Clear();
    return status;
  };
  pipeline.tick = [&] {
    return keep_going(writer.report()) ? absl::OkStatus() : absl::CancelledError("interrupted");
  };
  pipeline.stop_fetching = [&] { input.Stop(); };
  MEGATRON_RETURN_IF_ERROR(RunOrderedPipeline(pipeline));
  MEGATRON_RETURN_IF_ERROR(writer.Finalize());
  return writer.report();
}

}  // namespace megatron
