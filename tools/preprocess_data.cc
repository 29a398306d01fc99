// Turns JSON lines into the indexed datasets that training reads.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/data/preprocess.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "tools/tool_main.h"

ABSL_FLAG(std::string, input, "", "File of JSON objects, one a line; - reads stdin.");
ABSL_FLAG(std::string, output_prefix, "",
          "Each key's dataset is written to <output_prefix>_<key>_document.{bin,idx}.");
ABSL_FLAG(std::vector<std::string>, json_keys, {"text"},
          "Keys whose texts become documents, a dataset each.");
ABSL_FLAG(std::string, tokenizer_type, "ByteLevel", "ByteLevel or NullTokenizer.");
ABSL_FLAG(int64_t, vocab_size, 0, "Number of token ids of NullTokenizer.");
ABSL_FLAG(bool, append_eod, false,
          "Ends every document with the tokenizer's end-of-document token.");
ABSL_FLAG(int32_t, workers, 0, "Threads that tokenize; 0 takes one for each core.");
ABSL_FLAG(std::string, bad_lines, "fail",
          "What a line that can't be used does: fail ends the work and writes nothing, skip counts "
          "it and goes on.");

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;

volatile std::sig_atomic_t interrupted = 0;

// The second Ctrl-C kills: a read from a terminal does not return for the first.
void InstallInterruptHandler() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// One line that renews itself on a terminal, and one every ten seconds elsewhere.
class ProgressPrinter {
 public:
  void Print(const PreprocessReport& report) {
    const Clock::time_point now = Clock::now();
    if (now - last_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10)))
      return;
    last_ = now;
    std::cerr << (terminal_ ? "\r\x1b[K" : "") << Line(report) << (terminal_ ? "" : "\n")
              << std::flush;
  }

  void PrintLast(const PreprocessReport& report) {
    std::cerr << (terminal_ ? "\r\x1b[K" : "") << Line(report) << std::endl;
  }

 private:
  std::string Line(const PreprocessReport& report) const {
    const double seconds =
        std::max(std::chrono::duration<double>(Clock::now() - start_).count(), 1e-9);
    const double megabytes = static_cast<double>(report.bytes) / 1e6;
    return absl::StrFormat("%d documents, %.1f MB, %.0f documents/s, %.1f MB/s", report.documents,
                           megabytes, static_cast<double>(report.documents) / seconds,
                           megabytes / seconds);
  }

  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

absl::StatusOr<PreprocessOptions> OptionsFromFlags() {
  PreprocessOptions options;
  options.output_prefix = absl::GetFlag(FLAGS_output_prefix);
  options.json_keys = absl::GetFlag(FLAGS_json_keys);
  options.append_eod = absl::GetFlag(FLAGS_append_eod);
  options.workers = absl::GetFlag(FLAGS_workers);
  if (options.workers == 0) options.workers = AvailableCores();
  const std::string bad_lines = absl::GetFlag(FLAGS_bad_lines);
  options.skip_bad_lines = bad_lines == "skip";
  if (!options.skip_bad_lines && bad_lines != "fail") {
    return absl::InvalidArgumentError(
        absl::StrCat("--bad_lines=", bad_lines, ": there are fail and skip"));
  }
  if (options.output_prefix.empty())
    return absl::InvalidArgumentError("--output_prefix is missing");
  return options;
}

void PrintBadLines(const PreprocessReport& report) {
  if (report.bad_lines == 0) return;
  std::cerr << report.bad_lines << " of " << report.lines
            << " lines were skipped, beginning with\n";
  for (const std::string& line : report.first_bad_lines) std::cerr << "  " << line << "\n";
}

absl::Status Preprocess(std::istream& input) {
  MEGATRON_ASSIGN_OR_RETURN(const PreprocessOptions options, OptionsFromFlags());
  MEGATRON_ASSIGN_OR_RETURN(
      const std::unique_ptr<Tokenizer> tokenizer,
      CreateTokenizer({absl::GetFlag(FLAGS_tokenizer_type), absl::GetFlag(FLAGS_vocab_size)}));
  InstallInterruptHandler();
  ProgressPrinter progress;
  const absl::StatusOr<PreprocessReport> report = PreprocessJsonLines(
      input, *tokenizer, options, PosixFileSystem(), [&](const PreprocessReport& so_far) {
        progress.Print(so_far);
        return interrupted == 0;
      });
  if (absl::IsDataLoss(report.status())) {
    const bool bad_line = absl::StartsWith(report.status().message(), "line ");
    return absl::DataLossError(absl::StrCat(
        absl::GetFlag(FLAGS_input), ", ", report.status().message(), "\nNothing was written.",
        bad_line ? " --bad_lines=skip leaves such lines out." : ""));
  }
  if (absl::IsCancelled(report.status()))
    return absl::CancelledError("interrupted; nothing was written");
  MEGATRON_RETURN_IF_ERROR(report.status());
  progress.PrintLast(*report);
  PrintBadLines(*report);
  for (const std::string& key : options.json_keys) {
    std::cout << options.output_prefix << "_" << key << "_document\n";
  }
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty())
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arguments[0], "'"));
  const std::string path = absl::GetFlag(FLAGS_input);
  if (path.empty()) return absl::InvalidArgumentError("--input is missing; --input=- reads stdin");
  if (path == "-") {
    std::ios::sync_with_stdio(false);
    return Preprocess(std::cin);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat("open '", path, "'"));
  return Preprocess(file);
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(
      argc, argv,
      "Turns JSON lines into indexed datasets, as Megatron's preprocess_data.py does:\n"
      "  preprocess_data --input=stories.jsonl --output_prefix=stories --append_eod",
      megatron::Main);
}
