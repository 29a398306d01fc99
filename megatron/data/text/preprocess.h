// Converts JSON lines to indexed datasets; //tools:preprocess_data is the program.
//
// Every line is a JSON object with a text for each of `json_keys`; the texts of a key become the
// documents of one dataset, in the order of the lines. A text is one sequence, or one sequence per
// sentence: the sentences that the splitter finds, or those of the line if its value is a list of
// strings. The bytes are those of Megatron's tools/preprocess_data.py for the same tokens, for any
// number of workers: a text or a sentence without tokens gives no sequence, and a document without
// sequences gets no EOD. Lines of white space alone are skipped.
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
  // Appends the tokenizer's EOD to every document that is not empty.
  bool append_eod = false;
  // Begins every text, or every sentence, with the tokenizer's BOS. Megatron's Llama2Tokenizer
  // always does this, its HuggingFaceTokenizer if tokenizer.json says so.
  bool prepend_bos = false;
  // Text that spells a special token becomes that token, as with Megatron's HuggingFaceTokenizer
  // and SentencePieceTokenizer. Use it only for trusted input: a document can then end itself.
  bool parse_special = false;
  bool split_sentences = false;
  SentenceSplitterOptions splitter;
  // A line that cannot be used is counted and left out. If false, the first such line is an error.
  bool skip_bad_lines = false;
  int workers = 1;
};

struct PreprocessReport {
  int64_t lines = 0;
  int64_t documents = 0;  // documents of each dataset
  int64_t sequences = 0;  // sequences of all datasets; so are the tokens
  int64_t tokens = 0;
  int64_t bytes = 0;              // bytes of the lines
  int64_t stored_bytes_read = 0;  // bytes read from storage (compressed, if the inputs are)
  int64_t bad_lines = 0;
  std::array<int64_t, kNumBadLineKinds> bad_lines_by_kind = {};
  std::vector<std::string> first_bad_lines;  // "a.jsonl, line 7: there is no "text""; at most ten
};

// Returns the path of a key's dataset without extension: <output_prefix>_<key>_document, or
// _sentence with split_sentences.
std::string DatasetPrefix(const PreprocessOptions& options, const std::string& key);

// Returns kInvalidArgument for options that contradict each other or the tokenizer. Callers use it
// to check options before they open anything.
absl::Status CheckPreprocessOptions(const PreprocessOptions& options, const Tokenizer& tokenizer);

// Reads `input` to its end. `keep_going` is called regularly with the progress so far; if it
// returns false, the result is kCancelled. After an error no new dataset is left, and older ones of
// these names are unchanged. kInvalidArgument for invalid options, kDataLoss for a bad line
// ("a.jsonl, line 7: " and the reason), for damaged input and for input without any document, and
// the file system's errors.
//
// Memory: 12 bytes per document and 4 per sequence, and some ten megabytes per worker; a long line
// adds ten times its length, but only one such line is processed at a time.
absl::StatusOr<PreprocessReport> PreprocessJsonLines(
    LineBatchReader& input, const Tokenizer& tokenizer, const PreprocessOptions& options,
    FileSystem& fs, absl::FunctionRef<bool(const PreprocessReport&)> keep_going);

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_PREPROCESS_H_
