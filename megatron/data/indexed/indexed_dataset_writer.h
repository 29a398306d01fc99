// Writes Megatron's indexed datasets, byte for byte as its own builder does.
//
//   MEGATRON_ASSIGN_OR_RETURN(auto writer, IndexedDatasetWriter::Create(PosixFileSystem(), prefix,
//                                                                       TokenType::kU16));
//   MEGATRON_RETURN_IF_ERROR(writer->AddDocument({5, 6, 7}));
//   MEGATRON_RETURN_IF_ERROR(writer->Finalize());
//
// The dataset appears whole or not at all. The data is written to `<prefix>.bin.partial` and
// `<prefix>.idx.partial`; Finalize makes both durable and then renames them, the .bin file first (a
// .bin without an .idx is no dataset). Until then an older dataset of that name stays unchanged.
// The writer refuses to replace anything but a regular file, for example a symbolic link. If it is
// destroyed before Finalize, it removes what it wrote.
//
// One thread at a time may use a writer, and a prefix may have one writer.
#ifndef MEGATRON_DATA_INDEXED_INDEXED_DATASET_WRITER_H_
#define MEGATRON_DATA_INDEXED_INDEXED_DATASET_WRITER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/base/file_system.h"
#include "megatron/data/indexed/token_type.h"

namespace megatron {

class IndexedDatasetWriter {
 public:
  // `fs` must outlive the writer.
  static absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> Create(FileSystem& fs,
                                                                      std::string prefix,
                                                                      TokenType type);
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  // Adds a sequence to the current document. If the type cannot hold a token, returns
  // kInvalidArgument and adds nothing.
  absl::Status AddSequence(absl::Span<const int32_t> tokens);

  // Does the same as AddSequence for tokens in their stored form: a whole number of little-endian
  // values of the writer's type. `mode` is the additional byte of multimodal datasets; either all
  // sequences of a dataset have one, or none has.
  absl::Status AddStoredSequence(absl::string_view bytes,
                                 std::optional<int8_t> mode = std::nullopt);

  // Ends the current document. A document without sequences is recorded too.
  void EndDocument();

  // Adds a document of one sequence, or of no sequence if `tokens` is empty, as Megatron records an
  // empty text.
  absl::Status AddDocument(absl::Span<const int32_t> tokens);

  // Writes all remaining data durably, but leaves it invisible. A program that finishes several
  // datasets prepares all of them first, so that a full disk is noticed while none of them is
  // visible. Nothing may be added afterwards. CHECK-fails inside a document.
  absl::Status Prepare();

  // Makes the dataset visible, after Prepare if that was not called. Must be the last call, and is
  // called at most once.
  absl::Status Finalize();

  int64_t num_documents() const { return static_cast<int64_t>(document_ends_.size()); }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  IndexedDatasetWriter(FileSystem& fs, std::string prefix, TokenType type,
                       std::unique_ptr<WritableFile> bin);

  void RecordSequence(size_t num_tokens);
  absl::Status FlushTokens();
  absl::Status WriteIndex();
  // Renames the new .bin file to its final name. There is no .idx file afterwards; after an error
  // the older one is restored.
  absl::Status ReplaceTokens();

  FileSystem& fs_;
  const std::string prefix_;
  const TokenType type_;
  std::unique_ptr<WritableFile> bin_;
  std::string buffer_;  // the end of the .bin file, not yet written
  std::vector<int32_t> lengths_;
  std::vector<int64_t> document_ends_;
  std::vector<int8_t> modes_;
  int64_t num_tokens_ = 0;
  bool prepared_ = false;
  bool finalized_ = false;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_INDEXED_INDEXED_DATASET_WRITER_H_
