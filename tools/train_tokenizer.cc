// Trains a byte-level BPE vocabulary on text.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/data/io/line_batches.h"
#include "megatron/data/io/text_input.h"
#include "megatron/data/text/json_text.h"
#include "megatron/data/tokenizer/training/bpe_trainer.h"
#include "megatron/data/tokenizer/training/trained_bpe_files.h"
#include "megatron/data/tokenizer/training/word_counts.h"
#include "megatron/data/tokenizer/unicode.h"
#include "tools/common/dataset_lock.h"
#include "tools/common/interrupt.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(
    std::vector<std::string>, input, {},
    "Files, plain or compressed with gzip or zstd, patterns of their names, and - for stdin.");
ABSL_FLAG(
    std::vector<std::string>, json_keys, {},
    "Keys of JSON lines whose texts to train on; without any, every line of the inputs is a text.");
ABSL_FLAG(std::string, output, "",
          "A new directory for vocab.json, merges.txt, tokenizer.json and tokenizer.tiktoken.");
ABSL_FLAG(int32_t, vocab_size, 32000, "Tokens in all, special ones and bytes included.");
ABSL_FLAG(int64_t, min_frequency, 2, "Pairs that are rarer are not merged.");
ABSL_FLAG(std::vector<std::string>, special_tokens, {"<|endoftext|>"}, "They get the first ids.");
ABSL_FLAG(std::string, split_pattern, "gpt2",
          "How text is cut into words, which no token crosses: gpt2, llama3, qwen2, o200k or "
          "tekken.");
ABSL_FLAG(bool, all_bytes, true,
          "Makes every byte a token, so that any text can be encoded; else those of the inputs.");
ABSL_FLAG(int32_t, max_token_length, 0,
          "Tokens of three bytes or more are shorter than this; 0 sets no limit.");
ABSL_FLAG(int32_t, threads, 0, "0 takes one for each core.");

namespace megatron {
namespace {

constexpr int kMostThreads = 1024;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One thread's part of the counting.
class Counter {
 public:
  Counter(FirstPiece first_piece, const std::vector<std::string>& keys)
      : first_piece_(first_piece), keys_(keys) {}

  // Does nothing after its first error.
  void Count(const LineBatch& batch) {
    for (size_t i = 0; i < batch.lines.size() && status_.ok(); ++i) {
      const absl::Status status = batch.lines[i].too_long
                                      ? absl::DataLossError("the line is too long")
                                      : CountLine(batch, batch.lines[i].text);
      if (status.ok()) continue;
      status_ = absl::DataLossError(
          absl::StrCat(batch.path, ", line ", batch.first_line + i, ": ", status.message()));
    }
  }

  const absl::Status& status() const { return status_; }
  const WordCounts& words() const { return words_; }

 private:
  absl::Status CountLine(const LineBatch& batch, absl::string_view line) {
    if (keys_.empty()) {
      if (!IsValidUtf8(line)) return absl::DataLossError("the line is not UTF-8");
      // The line includes its line break, if it has one.
      const char* const end = batch.buffer.data() + batch.buffer.size();
      const size_t with_end = line.size() + (line.data() + line.size() < end ? 1 : 0);
      words_.AddText({line.data(), with_end}, first_piece_);
      return absl::OkStatus();
    }
    if (IsBlankJsonLine(line)) return absl::OkStatus();
    BadLineKind kind;
    MEGATRON_RETURN_IF_ERROR(ExtractJsonTexts(line, keys_, &texts_, &kind));
    for (const JsonText& text : texts_) {
      size_t begin = 0;
      for (const size_t end : text.ends) {
        words_.AddText(absl::string_view(text.text).substr(begin, end - begin), first_piece_);
        begin = end;
      }
    }
    return absl::OkStatus();
  }

  const FirstPiece first_piece_;
  const std::vector<std::string>& keys_;
  WordCounts words_;
  std::vector<JsonText> texts_;
  absl::Status status_;
};

absl::StatusOr<WordCounts> CountWords(FirstPiece first_piece, ThreadPool* pool) {
  MEGATRON_ASSIGN_OR_RETURN(const TextInputs inputs,
                            AsInput(FindTextInputs(absl::GetFlag(FLAGS_input))));
  const std::vector<std::string> keys = absl::GetFlag(FLAGS_json_keys);
  LineBatchReader reader(inputs.paths,
                         [](const std::string& path, const std::atomic<bool>* stop) {
                           return AsInput(OpenTextInput(path, stop));
                         },
                         {});
  std::vector<Counter> counters;
  for (int i = 0; i < pool->num_threads(); ++i) counters.emplace_back(first_piece, keys);
  std::vector<LineBatch> batches(counters.size() * 4);
  for (bool more = true; more;) {
    size_t count = 0;
    while (more && count < batches.size()) {
      MEGATRON_ASSIGN_OR_RETURN(more, reader.Next(&batches[count]));
      count += more ? 1 : 0;
    }
    const int64_t num_counters = static_cast<int64_t>(counters.size());
    pool->ParallelFor(num_counters, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        for (size_t i = count * c / num_counters; i < count * (c + 1) / num_counters; ++i)
          counters[c].Count(batches[i]);
      }
    });
    for (const Counter& counter : counters) MEGATRON_RETURN_IF_ERROR(counter.status());
  }
  WordCounts words;
  for (const Counter& counter : counters) words.Merge(counter.words());
  return words;
}

BpeTrainerOptions OptionsFromFlags() {
  BpeTrainerOptions options;
  options.vocab_size = absl::GetFlag(FLAGS_vocab_size);
  options.min_frequency = absl::GetFlag(FLAGS_min_frequency);
  options.special_tokens = absl::GetFlag(FLAGS_special_tokens);
  options.all_bytes = absl::GetFlag(FLAGS_all_bytes);
  options.max_token_length = absl::GetFlag(FLAGS_max_token_length);
  return options;
}

// Fails if the directory exists already.
absl::Status CheckOutput(const std::string& output) {
  if (output.empty()) return absl::InvalidArgumentError("--output is missing");
  const absl::Status status = PosixFileSystem().Stat(output).status();
  if (absl::IsNotFound(status)) return absl::OkStatus();
  MEGATRON_RETURN_IF_ERROR(status);
  return absl::InvalidArgumentError(
      absl::StrCat("--output: '", output, "' exists; a tokenizer is written to a new directory"));
}

// The directory gets its name when all files are complete and on disk.
absl::Status WriteFiles(const TrainedBpe& bpe, const NamedSplitPattern& split, std::string output) {
  while (output.size() > 1 && output.back() == '/') output.pop_back();
  FileSystem& fs = PosixFileSystem();
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(ParentPath(output)));
  MEGATRON_ASSIGN_OR_RETURN(const DatasetLock lock, DatasetLock::Take(output));
  MEGATRON_RETURN_IF_ERROR(CheckOutput(output));  // another process may have written it meanwhile
  const std::string partial = output + ".partial";
  MEGATRON_RETURN_IF_ERROR(fs.RemoveTree(partial));
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(partial));
  std::vector<std::pair<const char*, std::string>> files = {
      {"vocab.json", VocabJson(bpe)},
      {"merges.txt", MergesText(bpe)},
      {"tokenizer.json", TokenizerJson(bpe, split)}};
  absl::StatusOr<std::string> tiktoken = TiktokenText(bpe);
  if (tiktoken.ok()) {
    files.emplace_back("tokenizer.tiktoken", *std::move(tiktoken));
  } else {
    std::cerr << "no tokenizer.tiktoken: " << tiktoken.status().message() << "\n";
  }
  absl::Status status;
  for (const auto& [name, contents] : files) {
    if (status.ok()) status = WriteFileAtomically(fs, JoinPath(partial, name), contents);
  }
  if (status.ok()) status = fs.Rename(partial, output);
  if (status.ok()) return fs.SyncDir(ParentPath(output));
  fs.RemoveTree(partial).IgnoreError();  // the first error is reported
  return status;
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty())
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arguments[0], "'"));
  if (absl::GetFlag(FLAGS_input).empty()) return absl::InvalidArgumentError("--input is missing");
  MEGATRON_RETURN_IF_ERROR(CheckOutput(absl::GetFlag(FLAGS_output)));
  MEGATRON_ASSIGN_OR_RETURN(const NamedSplitPattern split,
                            FindNamedSplitPattern(absl::GetFlag(FLAGS_split_pattern)));
  const int32_t threads = absl::GetFlag(FLAGS_threads);
  if (threads < 0 || threads > kMostThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("--threads=", threads, " is not from 0 to ", kMostThreads));
  }
  EndWhenInterrupted("nothing was written");
  ThreadPool pool(threads > 0 ? threads : AvailableCores());
  // Training on no words only checks the flags, before a corpus is read in vain.
  const BpeTrainerOptions options = OptionsFromFlags();
  MEGATRON_RETURN_IF_ERROR(TrainBpe({}, options, &pool, [](int32_t) {}).status());
  Clock::time_point start = Clock::now();
  MEGATRON_ASSIGN_OR_RETURN(const WordCounts words, CountWords(FirstPieceOf(split.pattern), &pool));
  absl::FPrintF(stderr, "%d words, %d of them different: %.2f s\n", words.total(), words.size(),
                SecondsSince(start));
  if (words.total() == 0) return absl::DataLossError("there is no text in the input");
  start = Clock::now();
  Clock::time_point last_report = start;
  MEGATRON_ASSIGN_OR_RETURN(
      const TrainedBpe bpe, TrainBpe(words, options, &pool, [&](int32_t num_tokens) {
        if (SecondsSince(last_report) < 5) return;
        last_report = Clock::now();
        absl::FPrintF(stderr, "%d tokens of %d\n", num_tokens, options.vocab_size);
      }));
  absl::FPrintF(stderr, "%d tokens, %d merges: %.2f s\n", bpe.tokens.size(), bpe.merges.size(),
                SecondsSince(start));
  CatchInterrupts();  // interrupted while this ran
  return WriteFiles(bpe, split, absl::GetFlag(FLAGS_output));
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv,
                           "Trains a byte-level BPE vocabulary, as GPT-2 and Llama 3 have:\n"
                           "  train_tokenizer --input=stories.jsonl --json_keys=text "
                           "--vocab_size=8000 --output=tokenizer",
                           megatron::Main);
}
