#include "megatron/data/indexed/indexed_dataset_writer.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/indexed/indexed_dataset_format.h"
#include "megatron/data/little_endian.h"

namespace megatron {
namespace {

constexpr size_t kBufferSize = size_t{1} << 20;
// Suffix of an older index while its tokens are replaced.
constexpr char kAside[] = ".idx.old.partial";

template <typename Stored>
bool AllFit(absl::Span<const int32_t> tokens, int32_t* misfit) {
  for (const int32_t token : tokens) {
    if (static_cast<int64_t>(static_cast<Stored>(token)) != token) {
      *misfit = token;
      return false;
    }
  }
  return true;
}

template <typename Stored>
void AppendAs(absl::Span<const int32_t> tokens, std::string* out) {
  const size_t begin = out->size();
  out->resize(begin + tokens.size() * sizeof(Stored));
  char* to = &(*out)[begin];
  for (const int32_t token : tokens) {
    const Stored stored = static_cast<Stored>(token);
    std::memcpy(to, &stored, sizeof(stored));
    to += sizeof(stored);
  }
}

template <typename Stored>
absl::Status Encode(absl::Span<const int32_t> tokens, TokenType type, std::string* out) {
  int32_t misfit = 0;
  if (!AllFit<Stored>(tokens, &misfit)) {
    return absl::InvalidArgumentError(
        absl::StrCat("token ", misfit, " can't be stored as ", TokenTypeName(type)));
  }
  AppendAs<Stored>(tokens, out);
  return absl::OkStatus();
}

absl::Status EncodeAs(TokenType type, absl::Span<const int32_t> tokens, std::string* out) {
  switch (type) {
    case TokenType::kU8:
      return Encode<uint8_t>(tokens, type, out);
    case TokenType::kI8:
      return Encode<int8_t>(tokens, type, out);
    case TokenType::kI16:
      return Encode<int16_t>(tokens, type, out);
    case TokenType::kU16:
      return Encode<uint16_t>(tokens, type, out);
    case TokenType::kI32:
      return Encode<int32_t>(tokens, type, out);
    case TokenType::kI64:
      return Encode<int64_t>(tokens, type, out);
  }
  LOG(FATAL) << "token type " << static_cast<int>(type);
}

absl::Status CheckLength(size_t num_tokens) {
  if (num_tokens <= static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a sequence of ", num_tokens, " tokens; the format holds 2^31 - 1"));
}

// Collects small pieces and writes large ones.
class BufferedAppender {
 public:
  explicit BufferedAppender(WritableFile& file) : file_(file) {}

  template <typename T>
  absl::Status Append(T value) {
    AppendLittleEndian(value, &buffer_);
    return buffer_.size() < kBufferSize ? absl::OkStatus() : Flush();
  }
  absl::Status Append(absl::string_view bytes) {
    buffer_.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  absl::Status Flush() {
    const absl::Status status = file_.Append(buffer_);
    buffer_.clear();
    return status;
  }

 private:
  WritableFile& file_;
  std::string buffer_;
};

absl::Status SyncAndClose(WritableFile& file) {
  MEGATRON_RETURN_IF_ERROR(file.Sync());
  return file.Close();
}

}  // namespace

absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> IndexedDatasetWriter::Create(
    FileSystem& fs, std::string prefix, TokenType type) {
  for (const char* ending : {".bin", ".idx"})
    MEGATRON_RETURN_IF_ERROR(CheckReplaceable(fs, prefix + ending));
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> bin, fs.Create(prefix + ".bin.partial"),
                            _ << "while creating the dataset " << prefix);
  return std::unique_ptr<IndexedDatasetWriter>(
      new IndexedDatasetWriter(fs, std::move(prefix), type, std::move(bin)));
}

IndexedDatasetWriter::IndexedDatasetWriter(FileSystem& fs, std::string prefix, TokenType type,
                                           std::unique_ptr<WritableFile> bin)
    : fs_(fs), prefix_(std::move(prefix)), type_(type), bin_(std::move(bin)) {}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (finalized_) return;
  bin_.reset();
  // Removal is best effort: a leftover .partial file is harmless, and one of the two may not exist.
  fs_.Remove(prefix_ + ".bin.partial").IgnoreError();
  fs_.Remove(prefix_ + ".idx.partial").IgnoreError();
  fs_.Remove(prefix_ + kAside).IgnoreError();
}

absl::Status IndexedDatasetWriter::AddSequence(absl::Span<const int32_t> tokens) {
  MEGATRON_RETURN_IF_ERROR(CheckLength(tokens.size()));
  MEGATRON_RETURN_IF_ERROR(EncodeAs(type_, tokens, &buffer_),
                           _ << "in document " << num_documents() << " of " << prefix_);
  RecordSequence(tokens.size());
  return buffer_.size() < kBufferSize ? absl::OkStatus() : FlushTokens();
}

absl::Status IndexedDatasetWriter::AddStoredSequence(absl::string_view bytes,
                                                     std::optional<int8_t> mode) {
  const size_t token_size = static_cast<size_t>(TokenSize(type_));
  CHECK_EQ(bytes.size() % token_size, 0u);
  CHECK_EQ(modes_.size(), mode.has_value() ? lengths_.size() : 0u) << "modes for some sequences";
  MEGATRON_RETURN_IF_ERROR(CheckLength(bytes.size() / token_size));
  buffer_.append(bytes.data(), bytes.size());
  if (mode.has_value()) modes_.push_back(*mode);
  RecordSequence(bytes.size() / token_size);
  return buffer_.size() < kBufferSize ? absl::OkStatus() : FlushTokens();
}

void IndexedDatasetWriter::RecordSequence(size_t num_tokens) {
  lengths_.push_back(static_cast<int32_t>(num_tokens));
  num_tokens_ += static_cast<int64_t>(num_tokens);
}

void IndexedDatasetWriter::EndDocument() {
  document_ends_.push_back(static_cast<int64_t>(lengths_.size()));
}

absl::Status IndexedDatasetWriter::AddDocument(absl::Span<const int32_t> tokens) {
  if (!tokens.empty()) {
    MEGATRON_RETURN_IF_ERROR(AddSequence(tokens));
  }
  EndDocument();
  return absl::OkStatus();
}

absl::Status IndexedDatasetWriter::FlushTokens() {
  const absl::Status status = bin_->Append(buffer_);
  buffer_.clear();
  // The memory of a long sequence is released.
  if (buffer_.capacity() > 4 * kBufferSize) buffer_.shrink_to_fit();
  return status;
}

absl::Status IndexedDatasetWriter::WriteIndex() {
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file,
                            fs_.Create(prefix_ + ".idx.partial"));
  BufferedAppender out(*file);
  MEGATRON_RETURN_IF_ERROR(out.Append(kIndexMagic));
  MEGATRON_RETURN_IF_ERROR(out.Append(kIndexVersion));
  MEGATRON_RETURN_IF_ERROR(out.Append(static_cast<uint8_t>(type_)));
  MEGATRON_RETURN_IF_ERROR(out.Append(static_cast<uint64_t>(lengths_.size())));
  MEGATRON_RETURN_IF_ERROR(out.Append(static_cast<uint64_t>(document_ends_.size() + 1)));
  for (const int32_t length : lengths_) MEGATRON_RETURN_IF_ERROR(out.Append(length));
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    MEGATRON_RETURN_IF_ERROR(out.Append(offset));
    offset += int64_t{length} * TokenSize(type_);
  }
  MEGATRON_RETURN_IF_ERROR(out.Append(int64_t{0}));
  for (const int64_t end : document_ends_) MEGATRON_RETURN_IF_ERROR(out.Append(end));
  for (const int8_t mode : modes_) MEGATRON_RETURN_IF_ERROR(out.Append(mode));
  MEGATRON_RETURN_IF_ERROR(out.Flush());
  return SyncAndClose(*file);
}

absl::Status IndexedDatasetWriter::Prepare() {
  CHECK(!prepared_);
  CHECK_EQ(document_ends_.empty() ? 0 : document_ends_.back(),
           static_cast<int64_t>(lengths_.size()))
      << "the last document was not ended";
  CHECK(modes_.empty() || modes_.size() == lengths_.size()) << "modes for some sequences";
  MEGATRON_RETURN_IF_ERROR(FlushTokens());
  MEGATRON_RETURN_IF_ERROR(SyncAndClose(*bin_));
  MEGATRON_RETURN_IF_ERROR(WriteIndex());
  prepared_ = true;
  return absl::OkStatus();
}

absl::Status IndexedDatasetWriter::Finalize() {
  CHECK(!finalized_);
  if (!prepared_) {
    MEGATRON_RETURN_IF_ERROR(Prepare());
  }
  MEGATRON_RETURN_IF_ERROR(ReplaceTokens());
  const std::string directory = ParentPath(prefix_);
  MEGATRON_RETURN_IF_ERROR(fs_.Rename(prefix_ + ".idx.partial", prefix_ + ".idx"));
  MEGATRON_RETURN_IF_ERROR(fs_.SyncDir(directory));
  finalized_ = true;
  return absl::OkStatus();
}

absl::Status IndexedDatasetWriter::ReplaceTokens() {
  const std::string directory = ParentPath(prefix_), index = prefix_ + ".idx";
  for (const char* ending : {".bin", ".idx"})
    MEGATRON_RETURN_IF_ERROR(CheckReplaceable(fs_, prefix_ + ending));
  // An older dataset's index must never stand beside the new tokens, not even after a crash, so it
  // is removed first, durably.
  const absl::Status aside = fs_.Rename(index, prefix_ + kAside);
  if (!aside.ok() && !absl::IsNotFound(aside)) return aside;
  absl::Status status = fs_.SyncDir(directory);
  if (status.ok()) status = fs_.Rename(prefix_ + ".bin.partial", prefix_ + ".bin");
  if (!status.ok()) {
    // The first error is the one to report.
    if (aside.ok()) fs_.Rename(prefix_ + kAside, index).IgnoreError();
    return status;
  }
  // This also removes an old index that a killed run has left.
  const absl::Status removed = fs_.Remove(prefix_ + kAside);
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  return fs_.SyncDir(directory);
}

}  // namespace megatron
