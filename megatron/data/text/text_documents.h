// Plain text whose documents are told apart by a separator, as JSON lines: the work behind
// //tools:txt_to_jsonl. TinyStories is such a text, with <|endoftext|> on lines of its own.
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
  // Where it stands on a line of its own, but for white space around it, a document ends. "" is a
  // line that has nothing else.
  std::string separator = "<|endoftext|>";
  // The separator, which must not be empty then, ends a document wherever it stands.
  bool anywhere = false;
  // Removes the white space at both ends of a document.
  bool strip = true;
  // A byte that is no UTF-8 becomes U+FFFD; else the first one ends the work.
  bool replace_bad_utf8 = false;
  size_t max_document_bytes = size_t{128} << 20;
  std::string json_key = "text";
};

struct TextDocumentReport {
  int64_t lines = 0;
  int64_t documents = 0;
  int64_t bytes = 0;              // of text
  int64_t stored_bytes_read = 0;  // of the inputs as they lie on disk
  int64_t replaced_bytes = 0;
};

// Reads `input` to its end and hands `write` one JSON line after the other, several at a time. A
// document ends with its input, too; one without text is passed over. The text is all that stands
// between separators, its line ends included but the last. `keep_going` is called now and then;
// kCancelled where it returns false. kInvalidArgument for options; kDataLoss, with file and line,
// for bad UTF-8, for a document beyond max_document_bytes, and where no document was found.
absl::StatusOr<TextDocumentReport> TextToJsonLines(
    LineBatchReader& input, const TextDocumentOptions& options,
    absl::FunctionRef<absl::Status(absl::string_view)> write,
    absl::FunctionRef<bool(const TextDocumentReport&)> keep_going);

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_TEXT_DOCUMENTS_H_
