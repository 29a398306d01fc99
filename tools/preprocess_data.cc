// Turns JSON lines into the indexed datasets that training reads.

#include <atomic>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/data/io/line_batches.h"
#include "megatron/data/io/text_input.h"
#include "megatron/data/text/preprocess.h"
#include "tools/common/dataset_lock.h"
#include "tools/common/interrupt.h"
#include "tools/common/progress_line.h"
#include "tools/common/tokenizer_flags.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(
    std::vector<std::string>, input, {},
    "Files of JSON objects, one a line, plain or as .gz or .zst: names and patterns such as "
    "'shards/*.jsonl.gz', with commas between; - reads stdin. More may stand behind the flags.");
ABSL_FLAG(std::string, output_prefix, "",
          "Each key's dataset is written to <output_prefix>_<key>_document.{bin,idx}, or "
          "_sentence with --split_sentences.");
ABSL_FLAG(std::vector<std::string>, json_keys, {"text"},
          "Keys whose texts become documents, a dataset each.");
ABSL_FLAG(bool, append_eod, false,
          "Ends every document with the tokenizer's end-of-document token.");
ABSL_FLAG(bool, prepend_bos, false,
          "Begins every text (or sentence) with the tokenizer's BOS, as Megatron's Llama2Tokenizer "
          "does.");
ABSL_FLAG(bool, parse_special_tokens, false,
          "Text that spells a special token becomes that token, as with Megatron's "
          "HuggingFaceTokenizer and SentencePieceTokenizer.");
ABSL_FLAG(bool, split_sentences, false,
          "Makes each sentence a sequence of its document, as BERT and T5 need.");
ABSL_FLAG(bool, keep_newlines, false,
          "With --split_sentences: the white space behind a sentence stays with it.");
ABSL_FLAG(
    std::vector<std::string>, abbreviations, {},
    "With --split_sentences: words behind which a period ends no sentence, besides the usual.");
ABSL_FLAG(int32_t, workers, 0, "Threads that tokenize; 0 takes one for each core.");
ABSL_FLAG(int64_t, max_line_bytes, int64_t{128} << 20,
          "A longer line is a bad line; so memory is bounded, at about ten times this.");
ABSL_FLAG(std::string, bad_lines, "fail",
          "What a line that can't be used does: fail ends the work and writes nothing, skip counts "
          "it and goes on.");

namespace megatron {
namespace {

constexpr int kMostWorkers = 1024;

absl::StatusOr<PreprocessOptions> OptionsFromFlags() {
  PreprocessOptions options;
  options.output_prefix = absl::GetFlag(FLAGS_output_prefix);
  options.json_keys = absl::GetFlag(FLAGS_json_keys);
  options.append_eod = absl::GetFlag(FLAGS_append_eod);
  options.prepend_bos = absl::GetFlag(FLAGS_prepend_bos);
  options.parse_special = absl::GetFlag(FLAGS_parse_special_tokens);
  options.split_sentences = absl::GetFlag(FLAGS_split_sentences);
  options.splitter.keep_newlines = absl::GetFlag(FLAGS_keep_newlines);
  options.splitter.abbreviations = absl::GetFlag(FLAGS_abbreviations);
  options.workers = absl::GetFlag(FLAGS_workers);
  if (options.workers == 0) options.workers = AvailableCores();
  if (options.workers < 0 || options.workers > kMostWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workers=", options.workers, " is not from 0 to ", kMostWorkers));
  }
  const std::string bad_lines = absl::GetFlag(FLAGS_bad_lines);
  options.skip_bad_lines = bad_lines == "skip";
  if (!options.skip_bad_lines && bad_lines != "fail") {
    return absl::InvalidArgumentError(
        absl::StrCat("--bad_lines=", bad_lines, ": there are fail and skip"));
  }
  if (options.output_prefix.empty())
    return absl::InvalidArgumentError("--output_prefix is missing");
  if (!options.split_sentences &&
      (options.splitter.keep_newlines || !options.splitter.abbreviations.empty())) {
    return absl::InvalidArgumentError(
        "--keep_newlines and --abbreviations mean nothing without --split_sentences");
  }
  if (absl::GetFlag(FLAGS_max_line_bytes) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_line_bytes=", absl::GetFlag(FLAGS_max_line_bytes), " is below 1"));
  }
  return options;
}

std::string Describe(const PreprocessReport& report, double seconds) {
  const double bytes = static_cast<double>(report.bytes);
  const double tokens = static_cast<double>(report.tokens);
  return absl::StrFormat("%d documents, %.1f MB, %s tokens; %s documents/s, %.1f MB/s, %s tokens/s",
                         report.documents, bytes / 1e6, FormatCount(tokens),
                         FormatCount(static_cast<double>(report.documents) / seconds),
                         bytes / 1e6 / seconds, FormatCount(tokens / seconds));
}

void PrintBadLines(const PreprocessReport& report) {
  if (report.bad_lines == 0) return;
  std::cerr << report.bad_lines << " of " << report.lines << " lines were skipped:";
  absl::string_view separator = " ";
  for (size_t kind = 0; kind < kNumBadLineKinds; ++kind) {
    if (report.bad_lines_by_kind[kind] == 0) continue;
    std::cerr << separator << report.bad_lines_by_kind[kind] << " "
              << BadLineKindName(static_cast<BadLineKind>(kind));
    separator = ", ";
  }
  std::cerr << "; beginning with\n";
  for (const std::string& line : report.first_bad_lines) std::cerr << "  " << line << "\n";
}

absl::Status ExplainFailure(const absl::Status& status, const PreprocessOptions& options) {
  if (absl::IsCancelled(status)) return absl::CancelledError("interrupted; nothing was written");
  if (!absl::IsDataLoss(status)) return status;
  // "line 7: " is how the report of a bad line begins, behind its file.
  const bool bad_line = status.message().find(", line ") != absl::string_view::npos;
  return absl::DataLossError(absl::StrCat(
      status.message(), "\nNothing was written.",
      bad_line && !options.skip_bad_lines ? " --bad_lines=skip leaves such lines out." : ""));
}

absl::Status Main(const std::vector<std::string>& arguments) {
  std::vector<std::string> patterns = absl::GetFlag(FLAGS_input);
  patterns.insert(patterns.end(), arguments.begin(), arguments.end());
  if (patterns.empty())
    return absl::InvalidArgumentError("--input is missing; --input=- reads stdin");
  MEGATRON_ASSIGN_OR_RETURN(const PreprocessOptions options, OptionsFromFlags());
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, TokenizerFromFlags());
  MEGATRON_RETURN_IF_ERROR(CheckPreprocessOptions(options, *tokenizer));
  MEGATRON_ASSIGN_OR_RETURN(const TextInputs inputs, AsInput(FindTextInputs(patterns)));
  std::vector<DatasetLock> locks;
  for (const std::string& key : options.json_keys) {
    MEGATRON_ASSIGN_OR_RETURN(DatasetLock lock, DatasetLock::Take(DatasetPrefix(options, key)));
    locks.push_back(std::move(lock));
  }
  LineBatchReader::Options reader_options;
  reader_options.max_line_bytes = static_cast<size_t>(absl::GetFlag(FLAGS_max_line_bytes));
  LineBatchReader reader(
      inputs.paths,
      [](const std::string& path, const std::atomic<bool>* stop) {
        return AsInput(OpenTextInput(path, stop));
      },
      reader_options);
  CatchInterrupts();
  ProgressLine progress;
  const absl::StatusOr<PreprocessReport> report = PreprocessJsonLines(
      reader, *tokenizer, options, PosixFileSystem(), [&](const PreprocessReport& so_far) {
        progress.Update([&] {
          return absl::StrCat(
              Describe(so_far, progress.seconds()),
              FormatRemaining(so_far.stored_bytes_read, inputs.stored_bytes, progress.seconds()));
        });
        return !Interrupted();
      });
  if (!report.ok()) {
    progress.Clear();
    return ExplainFailure(report.status(), options);
  }
  progress.Finish(Describe(*report, progress.seconds()));
  PrintBadLines(*report);
  for (const std::string& key : options.json_keys) std::cout << DatasetPrefix(options, key) << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(
      argc, argv,
      "Turns JSON lines into indexed datasets, as Megatron's preprocess_data.py does:\n"
      "  preprocess_data --input=stories.jsonl --output_prefix=stories --append_eod\n"
      "--tokenizer_type (ByteLevel unless given) and its files: --helpon=tokenizer_flags.",
      megatron::Main);
}
