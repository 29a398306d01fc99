// JSON lines to indexed datasets: the work behind //tools:preprocess_data.
//
// Every line is a JSON object with a text for each of `json_keys`; each key's texts become the
// documents of one dataset, in the order of the lines. A text is one sequence, or one for each of
// its sentences: those that the sentence splitter finds, or those of the line where its value is
// a list of strings. The bytes are those of Megatron's tools/preprocess_data.py for the same
// tokens, whatever the number of workers: a text or a sentence without tokens is no sequence, and a
// document without sequences gets no EOD. Lines of white space alone are passed over.
#ifndef MEGATRON_DATA_TEXT_PREPROCESS_H_
#define MEGATRON_DATA_TEXT_PREPROCESS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/data/io/line_batches.h"
#include "megatron/data/text/bad_line_kind.h"
#include "megatron/data/text/sentence_splitter.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct PreprocessOptions {
  std::string output_prefix;
  std::vector<std::string> json_keys = {"text"};
  // Ends every document that isn't empty with the tokenizer's EOD.
  bool append_eod = false;
  // Begins every text, or every sentence, with the tokenizer's BOS, as Megatron's Llama2Tokenizer
  // does on its own and its HuggingFaceTokenizer where tokenizer.json says so.
  bool prepend_bos = false;
  // Takes text that spells a special token for that token, as Megatron's HuggingFaceTokenizer and
  // SentencePieceTokenizer do. For input that is trusted: a document can then end itself.
  bool parse_special = false;
  bool split_sentences = false;
  SentenceSplitterOptions splitter;
  // A line that can't be used is counted and left out; else the first one ends the work.
  bool skip_bad_lines = false;
  int workers = 1;
};

struct PreprocessReport {
  int64_t lines = 0;
  int64_t documents = 0;  // of each dataset
  int64_t sequences = 0;  // of all datasets, as are the tokens
  int64_t tokens = 0;
  int64_t bytes = 0;              // of lines
  int64_t stored_bytes_read = 0;  // of the inputs as they lie on disk
  int64_t bad_lines = 0;
  std::array<int64_t, kNumBadLineKinds> bad_lines_by_kind = {};
  std::vector<std::string> first_bad_lines;  // "a.jsonl, line 7: there is no "text""; ten at most
};

// <output_prefix>_<key>_document, or _sentence with split_sentences: the name of a key's dataset.
std::string DatasetPrefix(const PreprocessOptions& options, const std::string& key);

// kInvalidArgument for options that contradict each other or the tokenizer, for who must know
// before anything is opened.
absl::Status CheckPreprocessOptions(const PreprocessOptions& options, const Tokenizer& tokenizer);

// Reads `input` to its end. `keep_going` is called now and then with what was done so far; where it
// returns false, the work ends with kCancelled. After any error no dataset is left behind, and
// older ones of these names are as they were. kInvalidArgument for options, kDataLoss for a bad
// line ("a.jsonl, line 7: " and why), for damaged input and for one without one document, and the
// file system's errors.
//
// Memory: 12 bytes a document and 4 a sequence, and for each worker some ten megabytes; a long line
// adds ten times its length, but only one such line at a time is under way.
absl::StatusOr<PreprocessReport> PreprocessJsonLines(
    LineBatchReader& input, const Tokenizer& tokenizer, const PreprocessOptions& options,
    FileSystem& fs, absl::FunctionRef<bool(const PreprocessReport&)> keep_going);

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_PREPROCESS_H_
