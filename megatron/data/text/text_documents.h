// Converts plain text, whose documents are divided by a separator, to JSON lines;
// //tools:txt_to_jsonl is the program. TinyStories is such a text, with <|endoftext|> on lines of
// its own.
#ifndef MEGATRON_DATA_TEXT_TEXT_DOCUMENTS_H_
#define MEGATRON_DATA_TEXT_TEXT_DOCUMENTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/io/line_batches.h"

namespace megatron {

struct TextDocumentOptions {
  // A document ends at a line that consists of the separator, apart from white space around it. ""
  // stands for an empty line.
  std::string separator = "<|endoftext|>";
  // The separator ends a document anywhere in a line; it must not be empty then.
  bool anywhere = false;
  // Removes the white space at both ends of a document.
  bool strip = true;
  // An invalid UTF-8 byte becomes U+FFFD. If false, the first one is an error.
  bool replace_bad_utf8 = false;
  size_t max_document_bytes = size_t{128} << 20;
  std::string json_key = "text";
};

struct TextDocumentReport {
  int64_t lines = 0;
  int64_t documents = 0;
  int64_t bytes = 0;              // bytes of text
  int64_t stored_bytes_read = 0;  // bytes read from storage (compressed, if the inputs are)
  int64_t replaced_bytes = 0;
};

// Reads `input` to its end and passes JSON lines to `write`, several at a time. The end of an input
// also ends a document; a document without text is skipped. The text is everything between two
// separators, including all line ends but the last. `keep_going` is called regularly; if it returns
// false, the result is kCancelled. kInvalidArgument for invalid options; kDataLoss, with file and
// line, for bad UTF-8, for a document longer than max_document_bytes, and if no document was found.
absl::StatusOr<TextDocumentReport> TextToJsonLines(
    LineBatchReader& input, const TextDocumentOptions& options,
    absl::FunctionRef<absl::Status(absl::string_view)> write,
    absl::FunctionRef<bool(const TextDocumentReport&)> keep_going);

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_TEXT_DOCUMENTS_H_
