// Turns plain text with separators between its documents into JSON lines.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/io/line_batches.h"
#include "megatron/data/io/text_input.h"
#include "megatron/data/text/text_documents.h"
#include "tools/common/interrupt.h"
#include "tools/common/progress_line.h"
#include "tools/common/tool_main.h"
#include "tools/common/whole_file.h"

ABSL_FLAG(std::vector<std::string>, input, {},
          "Text files, plain or as .gz or .zst: names and patterns, with commas between; - reads "
          "stdin. More may stand behind the flags.");
ABSL_FLAG(std::string, output, "-", "File to write; - writes to stdout.");
ABSL_FLAG(std::string, separator, "<|endoftext|>",
          "What ends a document; empty: a blank line does.");
ABSL_FLAG(std::string, separator_place, "line",
          "Where the separator counts: line, on a line of its own; anywhere.");
ABSL_FLAG(bool, strip, true, "Removes white space at both ends of a document.");
ABSL_FLAG(std::string, json_key, "text", "Key of the text in each line.");
ABSL_FLAG(std::string, bad_utf8, "fail",
          "What bytes that are no UTF-8 do: fail ends the work, replace makes them U+FFFD.");
ABSL_FLAG(int64_t, max_document_bytes, int64_t{128} << 20,
          "A longer document ends the work: the separator is another one, then.");

namespace megatron {
namespace {

absl::StatusOr<bool> IsSecond(absl::string_view flag, const std::string& value,
                              absl::string_view first, absl::string_view second) {
  if (value == first) return false;
  if (value == second) return true;
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", value, ": there are ", first, " and ", second));
}

absl::StatusOr<TextDocumentOptions> OptionsFromFlags() {
  TextDocumentOptions options;
  options.separator = absl::GetFlag(FLAGS_separator);
  MEGATRON_ASSIGN_OR_RETURN(
      options.anywhere,
      IsSecond("separator_place", absl::GetFlag(FLAGS_separator_place), "line", "anywhere"));
  MEGATRON_ASSIGN_OR_RETURN(options.replace_bad_utf8,
                            IsSecond("bad_utf8", absl::GetFlag(FLAGS_bad_utf8), "fail", "replace"));
  options.strip = absl::GetFlag(FLAGS_strip);
  options.json_key = absl::GetFlag(FLAGS_json_key);
  if (absl::GetFlag(FLAGS_max_document_bytes) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max_document_bytes=", absl::GetFlag(FLAGS_max_document_bytes), " is below 1"));
  }
  options.max_document_bytes = static_cast<size_t>(absl::GetFlag(FLAGS_max_document_bytes));
  return options;
}

std::string Describe(const TextDocumentReport& report, double seconds) {
  return absl::StrFormat("%d documents, %.1f MB; %.1f MB/s", report.documents,
                         static_cast<double>(report.bytes) / 1e6,
                         static_cast<double>(report.bytes) / 1e6 / seconds);
}

absl::Status Convert(absl::FunctionRef<absl::Status(absl::string_view)> write,
                     const TextInputs& inputs, const TextDocumentOptions& options) {
  LineBatchReader::Options reader_options;
  reader_options.max_line_bytes = options.max_document_bytes;
  reader_options.stop = InterruptFlag();
  LineBatchReader reader(
      inputs.paths,
      [](const std::string& path, const std::atomic<bool>* stop) {
        return AsInput(OpenTextInput(path, stop));
      },
      reader_options);
  ProgressLine progress;
  const absl::StatusOr<TextDocumentReport> report =
      TextToJsonLines(reader, options, write, [&](const TextDocumentReport& so_far) {
        progress.Update([&] {
          return absl::StrCat(
              Describe(so_far, progress.seconds()),
              FormatRemaining(so_far.stored_bytes_read, inputs.stored_bytes, progress.seconds()));
        });
        return !Interrupted();
      });
  if (!report.ok()) {
    progress.Clear();
    return absl::IsCancelled(report.status()) ? absl::CancelledError("interrupted")
                                              : report.status();
  }
  progress.Finish(Describe(*report, progress.seconds()));
  if (report->replaced_bytes > 0)
    std::cerr << report->replaced_bytes << " bytes were no UTF-8 and are U+FFFD now\n";
  return absl::OkStatus();
}

absl::Status ConvertToFile(const std::string& path, const TextInputs& inputs,
                           const TextDocumentOptions& options) {
  for (const std::string& input : inputs.paths) {
    std::error_code unequal;
    if (std::filesystem::equivalent(input, path, unequal)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", path, "' can't be read and written at the same time"));
    }
  }
  return WriteWholeFile(path, [&](absl::FunctionRef<absl::Status(absl::string_view)> append) {
    return Convert(append, inputs, options);
  });
}

absl::Status Main(const std::vector<std::string>& arguments) {
  std::vector<std::string> patterns = absl::GetFlag(FLAGS_input);
  patterns.insert(patterns.end(), arguments.begin(), arguments.end());
  if (patterns.empty())
    return absl::InvalidArgumentError("--input is missing; --input=- reads stdin");
  MEGATRON_ASSIGN_OR_RETURN(const TextDocumentOptions options, OptionsFromFlags());
  MEGATRON_ASSIGN_OR_RETURN(const TextInputs inputs, AsInput(FindTextInputs(patterns)));
  CatchInterrupts();
  const std::string output = absl::GetFlag(FLAGS_output);
  return output == "-" ? Convert(WriteToStdout, inputs, options)
                       : ConvertToFile(output, inputs, options);
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(
      argc, argv,
      "Turns text with separators between its documents, as TinyStories has, into JSON lines:\n"
      "  txt_to_jsonl --input=TinyStories-train.txt --output=stories.jsonl",
      megatron::Main);
}
