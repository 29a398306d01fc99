// Writes Megatron's indexed datasets, byte for byte as its own builder does.
//
// The dataset appears whole or not at all: everything goes to `<prefix>.bin.partial` and
// `<prefix>.idx.partial`, and Finalize makes both durable and then renames them, the .bin file
// first; a .bin without an .idx is no dataset. An older dataset of that name stays as it is until
// then, and what is no regular file under one of these names, a symbolic link say, is refused.
// Destroyed without Finalize, the writer removes what it wrote.
//
//   MEGATRON_ASSIGN_OR_RETURN(auto writer, IndexedDatasetWriter::Create(PosixFileSystem(), prefix,
//   TokenType::kU16)); MEGATRON_RETURN_IF_ERROR(writer->AddDocument({5, 6, 7}));
//   MEGATRON_RETURN_IF_ERROR(writer->Finalize());
//
// One thread at a time, and one writer per prefix.
#ifndef MEGATRON_DATA_INDEXED_INDEXED_DATASET_WRITER_H_
#define MEGATRON_DATA_INDEXED_INDEXED_DATASET_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
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

  // Adds a sequence to the current document. kInvalidArgument for a token that the type can't hold;
  // nothing is added then.
  absl::Status AddSequence(absl::Span<const int32_t> tokens);

  // As AddSequence, for tokens as they are stored: a whole number of little-endian values of the
  // writer's type. `mode` is the byte that multimodal datasets have besides; all sequences of a
  // dataset have one, or none has.
  absl::Status AddStoredSequence(absl::string_view bytes,
                                 absl::optional<int8_t> mode = absl::nullopt);

  // Ends the current document; one without sequences is recorded too.
  void EndDocument();

  // A document of one sequence, or of none where there are no tokens, as Megatron records an empty
  // text.
  absl::Status AddDocument(absl::Span<const int32_t> tokens);

  // Writes out all that is missing, durably, but shows nothing yet: who has several datasets to
  // finish meets a full disk here, with none of them visible. Nothing may be added afterwards.
  // CHECK-fails inside a document.
  absl::Status Prepare();

  // The last call, at most once; prepares what is not yet prepared.
  absl::Status Finalize();

  int64_t num_documents() const { return static_cast<int64_t>(document_ends_.size()); }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  IndexedDatasetWriter(FileSystem& fs, std::string prefix, TokenType type,
                       std::unique_ptr<WritableFile> bin);

  void RecordSequence(size_t num_tokens);
  absl::Status FlushTokens();
  absl::Status WriteIndex();
  // Puts the new .bin where it belongs. There is no .idx afterwards; after an error the older one
  // is there again.
  absl::Status ReplaceTokens();

  FileSystem& fs_;
  const std::string prefix_;
  const TokenType type_;
  std::unique_ptr<WritableFile> bin_;
  std::string buffer_;  // the end of the .bin file
  std::vector<int32_t> lengths_;
  std::vector<int64_t> document_ends_;
  std::vector<int8_t> modes_;
  int64_t num_tokens_ = 0;
  bool prepared_ = false;
  bool finalized_ = false;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_INDEXED_INDEXED_DATASET_WRITER_H_
