// Reads Megatron's indexed datasets: `<prefix>.bin`, the tokens of all sequences back to back, and
// `<prefix>.idx`, which says where each sequence starts and which sequences make up a document.
// docs/data_format.md describes both byte by byte.
//
// The files are mapped, never copied: opening costs one pass over the index, and memory use does
// not grow with the number of tokens. On file systems without (fast) mapping, such as some network
// ones, the tokens are read by pread instead. Open checks everything that later calls rely on, so
// opening is safe for any bytes: an inconsistency is an error that names the file and the offset,
// and later reads stay inside the files. Token values are not checked; VerifyTokens does that, or
// the vocabulary check of the code that reads them.
#ifndef MEGATRON_DATA_INDEXED_INDEXED_DATASET_H_
#define MEGATRON_DATA_INDEXED_INDEXED_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/base/file_system.h"
#include "megatron/base/mapped_file.h"
#include "megatron/data/indexed/indexed_dataset_index.h"
#include "megatron/data/indexed/token_type.h"
#include "megatron/data/token_sequences.h"

namespace megatron {

struct IndexedDatasetOptions {
  // If false, each piece of a sequence is read by one system call. The index is always mapped.
  bool mmap_bin_files = true;
};

class IndexedDataset : public TokenSequences {
 public:
  // `path` is the prefix of both files, or the name of one of them. kNotFound if a file is missing,
  // kDataLoss if they contradict the format or each other.
  static absl::StatusOr<IndexedDataset> Open(absl::string_view path,
                                             const IndexedDatasetOptions& options = {});

  // Returns the path without .idx and .bin.
  static absl::string_view PrefixOf(absl::string_view path);
  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return index_.token_type; }
  bool has_modes() const { return index_.modes != nullptr; }
  int64_t num_documents() const { return index_.num_documents; }
  int64_t num_tokens() const { return num_tokens_; }

  // Returns a fingerprint by which a changed dataset can be recognized: the CRC-32C of the .idx
  // file followed by a sample of the .bin file, 256 blocks of 4 KiB spread evenly from its first
  // byte to its last (the whole file if it is no longer than these blocks). It costs a pass over
  // the index and a few milliseconds for any number of tokens. It detects other or regenerated
  // text, but not a few tokens changed between the blocks. The same files give the same value on
  // every machine and in every release.
  absl::StatusOr<uint32_t> ContentFingerprint() const;

  // Returns the number of tokens and the fingerprint, such as "1234 tokens, crc32c 0123abcd".
  // Cached indices and checkpoints identify a dataset by this text.
  absl::StatusOr<std::string> DescribeContents() const;

  // Sequences [first, second) make up document `i`.
  std::pair<int64_t, int64_t> DocumentSequences(int64_t i) const;

  int64_t num_sequences() const override { return index_.num_sequences; }
  int32_t SequenceLength(int64_t i) const override;
  absl::Status ReadTokens(int64_t i, int32_t begin, absl::Span<int32_t> out) const override;

  // Returns the kind of sequence `i`, for example text or image: a number that the dataset's maker
  // chose. Requires has_modes().
  int8_t SequenceMode(int64_t i) const;

  // Returns the stored bytes of sequence `i`: SequenceLength(i) little-endian values of
  // token_type(). Requires that .bin files are mapped.
  absl::string_view SequenceBytes(int64_t i) const;

  // Returns kDataLoss if the .bin file has bytes that belong to no sequence: then the two files are
  // not a pair, or the .bin file was still being written.
  absl::Status VerifyBinSize() const;

  // Reads every token; fails at the first one outside [0, vocab_size) and names its position.
  absl::Status VerifyTokens(int64_t vocab_size) const;

 private:
  IndexedDataset(std::string prefix, MappedFile idx, ParsedIndex index);

  int64_t BinSize() const;
  // Reads bytes [offset, offset + buffer.size()) of the .bin file.
  absl::Status ReadBin(int64_t offset, absl::Span<char> buffer) const;

  std::string prefix_;
  MappedFile idx_;
  // The .bin file; exactly one of the two is set.
  std::optional<MappedFile> bin_map_;
  std::unique_ptr<RandomAccessFile> bin_file_;
  ParsedIndex index_;
  int64_t num_tokens_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_INDEXED_INDEXED_DATASET_H_
