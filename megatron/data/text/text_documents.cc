#include "megatron/data/text/text_documents.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/text/json_string.h"
#include "megatron/data/text/utf8_scan.h"

namespace megatron {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr absl::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

class Converter {
 public:
  Converter(const TextDocumentOptions& options,
            absl::FunctionRef<absl::Status(absl::string_view)> write)
      : options_(options), write_(write) {
    AppendJsonString(options.json_key, &line_begin_);
    line_begin_ = absl::StrCat("{", line_begin_, ": ");
  }

  absl::Status AddBatch(const LineBatch& batch) {
    if (batch.path != path_ || batch.first_line == 1) {
      MEGATRON_RETURN_IF_ERROR(EndDocument());
      path_ = batch.path;
    }
    line_number_ = batch.first_line;
    for (const LineBatch::Line& line : batch.lines) {
      if (line.too_long) return TooLong();
      MEGATRON_RETURN_IF_ERROR(AddLine(line.text));
      report_.bytes += static_cast<int64_t>(line.text.size()) + 1;
      ++report_.lines;
      ++line_number_;
    }
    report_.stored_bytes_read = batch.stored_bytes_read;
    return absl::OkStatus();
  }

  absl::Status Finish() {
    MEGATRON_RETURN_IF_ERROR(EndDocument());
    if (report_.documents == 0) {
      return absl::DataLossError(
          absl::StrCat("there is no document in the input; lines read: ", report_.lines));
    }
    return Flush();
  }

  const TextDocumentReport& report() const { return report_; }

 private:
  absl::Status At(absl::string_view problem) const {
    return absl::DataLossError(
        absl::StrCat(path_ == "-" ? "stdin" : path_, ", line ", line_number_, ": ", problem));
  }
  absl::Status TooLong() const {
    return At(absl::StrCat("a document of more than ", options_.max_document_bytes, " bytes; is '",
                           options_.separator, "' what separates them?"));
  }

  absl::Status AddLine(absl::string_view line) {
    if (!options_.anywhere) {
      if (absl::StripAsciiWhitespace(line) == options_.separator) return EndDocument();
      return AddText(line);
    }
    for (size_t end = line.find(options_.separator); end != line.npos;
         end = line.find(options_.separator)) {
      MEGATRON_RETURN_IF_ERROR(AddText(line.substr(0, end)));
      MEGATRON_RETURN_IF_ERROR(EndDocument());
      line.remove_prefix(end + options_.separator.size());
    }
    return AddText(line);
  }

  // Adds a line, or the rest of one, to the document.
  absl::Status AddText(absl::string_view text) {
    if (has_text_) document_.push_back('\n');
    has_text_ = true;
    while (true) {
      const size_t good = Utf8PrefixLength(text);
      document_.append(text.data(), good);
      text.remove_prefix(good);
      if (text.empty()) break;
      if (!options_.replace_bad_utf8) return At("bad UTF-8");
      document_.append(kReplacement.data(), kReplacement.size());
      text.remove_prefix(1);
      ++report_.replaced_bytes;
    }
    return document_.size() > options_.max_document_bytes ? TooLong() : absl::OkStatus();
  }

  absl::Status EndDocument() {
    const absl::string_view text =
        options_.strip ? absl::StripAsciiWhitespace(document_) : absl::string_view(document_);
    if (!text.empty()) {
      out_ += line_begin_;
      AppendJsonString(text, &out_);
      out_ += "}\n";
      ++report_.documents;
    }
    document_.clear();
    has_text_ = false;
    return out_.size() < kBufferBytes ? absl::OkStatus() : Flush();
  }

  absl::Status Flush() {
    const absl::Status status = write_(out_);
    out_.clear();
    return status;
  }

  const TextDocumentOptions& options_;
  const absl::FunctionRef<absl::Status(absl::string_view)> write_;
  std::string line_begin_;  // beginning of every line of output
  std::string path_;
  int64_t line_number_ = 1;
  std::string document_;
  bool has_text_ = false;  // a line was added to document_, possibly an empty one
  std::string out_;
  TextDocumentReport report_;
};

absl::Status CheckOptions(const TextDocumentOptions& options) {
  if (options.anywhere && options.separator.empty())
    return absl::InvalidArgumentError("an empty separator stands everywhere");
  if (options.separator.find('\n') != std::string::npos)
    return absl::InvalidArgumentError("a separator can't contain the end of a line");
  if (!options.anywhere && absl::StripAsciiWhitespace(options.separator) != options.separator)
    return absl::InvalidArgumentError("a separator can't begin or end with white space");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TextDocumentReport> TextToJsonLines(
    LineBatchReader& input, const TextDocumentOptions& options,
    absl::FunctionRef<absl::Status(absl::string_view)> write,
    absl::FunctionRef<bool(const TextDocumentReport&)> keep_going) {
  MEGATRON_RETURN_IF_ERROR(CheckOptions(options));
  Converter converter(options, write);
  LineBatch batch;
  while (true) {
    MEGATRON_ASSIGN_OR_RETURN(const bool more, input.Next(&batch));
    if (!more) break;
    MEGATRON_RETURN_IF_ERROR(converter.AddBatch(batch));
    if (!keep_going(converter.report())) return absl::CancelledError("interrupted");
  }
  MEGATRON_RETURN_IF_ERROR(converter.Finish());
  return converter.report();
}

}  // namespace megatron
