#include "megatron/data/indexed/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/little_endian.h"

namespace megatron {
namespace {

// These values determine fingerprints in checkpoints: if they change, known data looks changed.
constexpr int64_t kFingerprintBlocks = 256;
constexpr int64_t kFingerprintBlockSize = 4096;

template <typename Stored>
void Widen(const char* data, absl::Span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const Stored token = LoadLittleEndian<Stored>(data, static_cast<int64_t>(i));
    if constexpr (sizeof(Stored) > sizeof(int32_t)) {
      // A value that does not fit in 32 bits must not turn into a valid token.
      out[i] = token < 0 || token > std::numeric_limits<int32_t>::max()
                   ? -1
                   : static_cast<int32_t>(token);
    } else {
      out[i] = token;
    }
  }
}

void Widen(TokenType type, const char* data, absl::Span<int32_t> out) {
  switch (type) {
    case TokenType::kU8:
      return Widen<uint8_t>(data, out);
    case TokenType::kI8:
      return Widen<int8_t>(data, out);
    case TokenType::kI16:
      return Widen<int16_t>(data, out);
    case TokenType::kU16:
      return Widen<uint16_t>(data, out);
    case TokenType::kI32:
      return Widen<int32_t>(data, out);
    case TokenType::kI64:
      return Widen<int64_t>(data, out);
  }
}

}  // namespace

absl::string_view IndexedDataset::PrefixOf(absl::string_view path) {
  if (!absl::ConsumeSuffix(&path, ".idx")) absl::ConsumeSuffix(&path, ".bin");
  return path;
}

absl::StatusOr<IndexedDataset> IndexedDataset::Open(absl::string_view path,
                                                    const IndexedDatasetOptions& options) {
  const std::string prefix(PrefixOf(path));
  MEGATRON_ASSIGN_OR_RETURN(MappedFile idx, MappedFile::Open(prefix + ".idx"),
                            _ << "while opening the dataset " << prefix);
  IndexedDataset dataset(prefix, std::move(idx), {});
  const std::string bin = prefix + ".bin";
  const auto opening = absl::StrCat("while opening the dataset ", prefix);
  if (options.mmap_bin_files) {
    MEGATRON_ASSIGN_OR_RETURN(dataset.bin_map_, MappedFile::Open(bin), _ << opening);
  } else {
    MEGATRON_ASSIGN_OR_RETURN(dataset.bin_file_, PosixFileSystem().Open(bin), _ << opening);
  }
  MEGATRON_ASSIGN_OR_RETURN(dataset.index_, ParseIndex(dataset.idx_.data(), dataset.BinSize()),
                            _.SetPrepend() << "'" << prefix << ".idx', ");
  for (int64_t i = 0; i < dataset.num_sequences(); ++i)
    dataset.num_tokens_ += dataset.SequenceLength(i);
  return dataset;
}

IndexedDataset::IndexedDataset(std::string prefix, MappedFile idx, ParsedIndex index)
    : prefix_(std::move(prefix)), idx_(std::move(idx)), index_(index) {}

absl::Status IndexedDataset::VerifyBinSize() const {
  const int64_t expected = num_tokens_ * TokenSize(token_type());
  if (BinSize() == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("'", prefix_, ".bin' has ", BinSize(),
                                          " bytes, its tokens ", expected,
                                          ": some belong to no sequence"));
}

int64_t IndexedDataset::BinSize() const {
  return bin_map_.has_value() ? static_cast<int64_t>(bin_map_->data().size()) : bin_file_->size();
}

absl::Status IndexedDataset::ReadBin(int64_t offset, absl::Span<char> buffer) const {
  if (!bin_map_.has_value()) return bin_file_->ReadAt(offset, buffer);
  std::copy_n(bin_map_->data().data() + offset, buffer.size(), buffer.data());
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> IndexedDataset::ContentFingerprint() const {
  uint32_t crc = Crc32c(idx_.data());
  const int64_t size = BinSize();
  const int64_t last = size - kFingerprintBlockSize;
  std::vector<char> buffer(std::min(size, kFingerprintBlocks * kFingerprintBlockSize));
  if (last <= (kFingerprintBlocks - 1) * kFingerprintBlockSize) {
    MEGATRON_RETURN_IF_ERROR(ReadBin(0, absl::MakeSpan(buffer)));
    return ExtendCrc32c(crc, {buffer.data(), buffer.size()});
  }
  for (int64_t block = 0; block < kFingerprintBlocks; ++block) {
    const int64_t offset = last * block / (kFingerprintBlocks - 1);
    MEGATRON_RETURN_IF_ERROR(ReadBin(offset, absl::MakeSpan(buffer).first(kFingerprintBlockSize)));
    crc = ExtendCrc32c(crc, {buffer.data(), kFingerprintBlockSize});
  }
  return crc;
}

absl::StatusOr<std::string> IndexedDataset::DescribeContents() const {
  MEGATRON_ASSIGN_OR_RETURN(const uint32_t fingerprint, ContentFingerprint());
  return absl::StrFormat("%d tokens, crc32c %08x", num_tokens_, fingerprint);
}

std::pair<int64_t, int64_t> IndexedDataset::DocumentSequences(int64_t i) const {
  DCHECK_LT(i, index_.num_documents);
  return {LoadLittleEndian<int64_t>(index_.documents, i),
          LoadLittleEndian<int64_t>(index_.documents, i + 1)};
}

int32_t IndexedDataset::SequenceLength(int64_t i) const {
  DCHECK_LT(i, index_.num_sequences);
  return LoadLittleEndian<int32_t>(index_.lengths, i);
}

int8_t IndexedDataset::SequenceMode(int64_t i) const {
  CHECK(has_modes()) << prefix_;
  DCHECK_LT(i, index_.num_sequences);
  return static_cast<int8_t>(index_.modes[i]);
}

absl::string_view IndexedDataset::SequenceBytes(int64_t i) const {
  CHECK(bin_map_.has_value()) << prefix_ << ".bin is not mapped";
  const int64_t offset = LoadLittleEndian<int64_t>(index_.offsets, i);
  return bin_map_->data().substr(offset, int64_t{SequenceLength(i)} * TokenSize(index_.token_type));
}

absl::Status IndexedDataset::ReadTokens(int64_t i, int32_t begin, absl::Span<int32_t> out) const {
  DCHECK_LE(begin + static_cast<int64_t>(out.size()), SequenceLength(i));
  const size_t token_size = static_cast<size_t>(TokenSize(index_.token_type));
  int64_t offset = LoadLittleEndian<int64_t>(index_.offsets, i) +
                   int64_t{begin} * static_cast<int64_t>(token_size);
  if (bin_map_.has_value()) {
    Widen(index_.token_type, bin_map_->data().data() + offset, out);
    return absl::OkStatus();
  }
  std::array<char, 1 << 15> buffer;
  while (!out.empty()) {
    const absl::Span<int32_t> piece = out.first(std::min(out.size(), buffer.size() / token_size));
    const absl::Span<char> bytes = absl::MakeSpan(buffer).first(piece.size() * token_size);
    MEGATRON_RETURN_IF_ERROR(bin_file_->ReadAt(offset, bytes),
                             _ << "while reading sequence " << i << " of the dataset " << prefix_);
    Widen(index_.token_type, buffer.data(), piece);
    offset += static_cast<int64_t>(bytes.size());
    out.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

absl::Status IndexedDataset::VerifyTokens(int64_t vocab_size) const {
  std::vector<int32_t> tokens(4096);
  for (int64_t i = 0; i < num_sequences(); ++i) {
    const int32_t length = SequenceLength(i);
    for (int32_t begin = 0; begin < length;) {
      const absl::Span<int32_t> piece = absl::MakeSpan(tokens).first(
          std::min<size_t>(tokens.size(), static_cast<size_t>(length - begin)));
      MEGATRON_RETURN_IF_ERROR(ReadTokens(i, begin, piece));
      for (size_t k = 0; k < piece.size(); ++k) {
        if (piece[k] >= 0 && piece[k] < vocab_size) continue;
        return absl::DataLossError(absl::StrCat("'", prefix_, ".bin', sequence ", i, ", position ",
                                                begin + k, ": token ", piece[k],
                                                " is outside a vocabulary of ", vocab_size));
      }
      begin += static_cast<int32_t>(piece.size());
    }
  }
  return absl::OkStatus();
}

}  // namespace megatron
