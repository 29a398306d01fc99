#include "megatron/data/indexed/indexed_dataset_index.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/indexed/indexed_dataset_format.h"
#include "megatron/data/little_endian.h"

namespace megatron {
namespace {

template <typename... Parts>
absl::Status Corrupt(int64_t offset, const Parts&... parts) {
  return absl::DataLossError(absl::StrCat("offset ", offset, ": ", parts...));
}

absl::Status CheckHeader(absl::string_view index) {
  if (index.substr(0, kIndexMagic.size()) != kIndexMagic.substr(0, index.size())) {
    return Corrupt(0, "this is no index of a dataset: it does not begin with MMIDIDX");
  }
  if (static_cast<int64_t>(index.size()) < kIndexHeaderSize) {
    return Corrupt(index.size(), "the file ends inside its header of ", kIndexHeaderSize, " bytes");
  }
  const uint64_t version = LoadLittleEndian<uint64_t>(index.data() + kIndexVersionOffset);
  if (version != kIndexVersion)
    return Corrupt(kIndexVersionOffset, "version ", version, " is not ", kIndexVersion);
  return absl::OkStatus();
}

// Counts are compared with the file's size before they are multiplied, so that nothing overflows.
absl::Status CheckCounts(absl::string_view index, uint64_t sequences, uint64_t boundaries) {
  const uint64_t space = index.size() - kIndexHeaderSize;
  if (sequences > space / 12) {
    return Corrupt(kIndexSequenceCountOffset, sequences, " sequences do not fit into a file of ",
                   index.size(), " bytes; is it cut off?");
  }
  if (boundaries == 0)
    return Corrupt(kIndexDocumentCountOffset,
                   "a document count of 0; even no document has count 1");
  const uint64_t rest = space - 12 * sequences;
  if (boundaries > rest / 8) {
    return Corrupt(kIndexDocumentCountOffset, boundaries,
                   " document boundaries do not fit into a file of ", index.size(), " bytes with ",
                   sequences, " sequences; is it cut off?");
  }
  const uint64_t trailing = rest - 8 * boundaries;
  if (trailing != 0 && trailing != sequences) {
    return Corrupt(index.size() - trailing, trailing,
                   " bytes too many after the last document boundary");
  }
  return absl::OkStatus();
}

// Checks that sequences do not overlap; gaps are allowed. So all sequences together hold no more
// tokens than the .bin file, and callers may allocate by the sum of the lengths.
absl::Status CheckSequences(absl::string_view index, const ParsedIndex& parsed, int64_t bin_size) {
  const int64_t token_size = TokenSize(parsed.token_type);
  int64_t previous_end = 0;
  for (int64_t i = 0; i < parsed.num_sequences; ++i) {
    const int32_t length = LoadLittleEndian<int32_t>(parsed.lengths, i);
    if (length < 0) {
      return Corrupt(parsed.lengths + 4 * i - index.data(), "sequence ", i, " has length ", length);
    }
    const int64_t offset = LoadLittleEndian<int64_t>(parsed.offsets, i);
    const int64_t at = parsed.offsets + 8 * i - index.data();
    if (offset < previous_end) {
      return Corrupt(at, "sequence ", i, " begins at byte ", offset,
                     ", before the end of the one before it at ", previous_end);
    }
    if (offset > bin_size || length * token_size > bin_size - offset) {
      return Corrupt(at, "sequence ", i, ", ", length, " tokens of ", token_size, " bytes at byte ",
                     offset, ", does not lie in the .bin file of ", bin_size, " bytes");
    }
    previous_end = offset + length * token_size;
  }
  return absl::OkStatus();
}

absl::Status CheckDocuments(absl::string_view index, const ParsedIndex& parsed) {
  int64_t previous = 0;
  for (int64_t i = 0; i <= parsed.num_documents; ++i) {
    const int64_t boundary = LoadLittleEndian<int64_t>(parsed.documents, i);
    const int64_t at = parsed.documents + 8 * i - index.data();
    if (i == 0 && boundary != 0)
      return Corrupt(at, "the first document begins at sequence ", boundary, ", not 0");
    if (boundary < previous) {
      return Corrupt(at, "document boundary ", i, " is ", boundary, ", below the one before it, ",
                     previous);
    }
    if (boundary > parsed.num_sequences ||
        (i == parsed.num_documents && boundary != parsed.num_sequences)) {
      return Corrupt(at, "document boundary ", i, " is ", boundary,
                     "; the last one must be the number of sequences, ", parsed.num_sequences);
    }
    previous = boundary;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParsedIndex> ParseIndex(absl::string_view index, int64_t bin_size) {
  MEGATRON_RETURN_IF_ERROR(CheckHeader(index));
  ParsedIndex parsed;
  MEGATRON_ASSIGN_OR_RETURN(parsed.token_type,
                            TokenTypeFromCode(static_cast<uint8_t>(index[kIndexTypeOffset])),
                            _.SetPrepend() << "offset " << kIndexTypeOffset << ": ");
  const uint64_t sequences = LoadLittleEndian<uint64_t>(index.data() + kIndexSequenceCountOffset);
  const uint64_t boundaries = LoadLittleEndian<uint64_t>(index.data() + kIndexDocumentCountOffset);
  MEGATRON_RETURN_IF_ERROR(CheckCounts(index, sequences, boundaries));
  parsed.num_sequences = static_cast<int64_t>(sequences);
  parsed.num_documents = static_cast<int64_t>(boundaries) - 1;
  parsed.lengths = index.data() + kIndexHeaderSize;
  parsed.offsets = parsed.lengths + 4 * sequences;
  parsed.documents = parsed.offsets + 8 * sequences;
  const char* const end = parsed.documents + 8 * boundaries;
  if (end != index.data() + index.size()) parsed.modes = end;
  MEGATRON_RETURN_IF_ERROR(CheckSequences(index, parsed, bin_size));
  MEGATRON_RETURN_IF_ERROR(CheckDocuments(index, parsed));
  return parsed;
}

}  // namespace megatron
