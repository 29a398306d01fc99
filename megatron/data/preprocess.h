// JSON lines to indexed datasets: the work behind //tools:preprocess_data.
//
// Every line is a JSON object with a text for each of `json_keys`; each key's texts become the
// documents of one dataset, <output_prefix>_<key>_document.{bin,idx}, in the order of the lines.
// The bytes are those of Megatron's tools/preprocess_data.py for the same tokens, whatever the
// number of workers: an empty text is a document without tokens, without EOD too. Lines of white
// space alone are passed over.
#ifndef MEGATRON_DATA_PREPROCESS_H_
#define MEGATRON_DATA_PREPROCESS_H_

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct PreprocessOptions {
  std::string output_prefix;
  std::vector<std::string> json_keys = {"text"};
  // Ends every document that isn't empty with the tokenizer's EOD.
  bool append_eod = false;
  // A line that can't be used is counted and left out; else the first one ends the work.
  bool skip_bad_lines = false;
  int workers = 1;
};

struct PreprocessReport {
  int64_t lines = 0;
  int64_t documents = 0;  // of each dataset
  int64_t bytes = 0;      // of input
  int64_t tokens = 0;     // of all datasets
  int64_t bad_lines = 0;
  std::vector<std::string> first_bad_lines;  // "line 7: there is no "text"", ten of them at most
};

// Reads `input` to its end. `keep_going` is called now and then with what was done so far; where it
// returns false, the work ends with kCancelled. After any error no dataset is left behind, and
// older ones of these names are as they were. kInvalidArgument for options, kDataLoss for a bad
// line ("line 7: " and why) and for an input without one document, and the file system's errors.
absl::StatusOr<PreprocessReport> PreprocessJsonLines(
    std::istream& input, const Tokenizer& tokenizer, const PreprocessOptions& options,
    FileSystem& fs, absl::FunctionRef<bool(const PreprocessReport&)> keep_going);

}  // namespace megatron

#endif  // MEGATRON_DATA_PREPROCESS_H_
