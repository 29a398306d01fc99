#include "tools/torch_checkpoint/zip_archive.h"

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr uint32_t kEnd = 0x06054b50, kEndLocator64 = 0x07064b50, kEnd64 = 0x06064b50;
constexpr uint32_t kCentral = 0x02014b50, kLocal = 0x04034b50;
constexpr size_t kEndSize = 22, kLocator64Size = 20, kEnd64Size = 56;
constexpr size_t kCentralSize = 46, kLocalSize = 30;
constexpr size_t kLongestComment = 65535;
// The value of a 32-bit field whose number stands in 64 bits elsewhere.
constexpr uint64_t kElsewhere = 0xffffffff;

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("no archive of torch.save: ", what));
}

// A little-endian number of `size` bytes; the caller has checked that they are there.
uint64_t Number(absl::string_view bytes, size_t at, size_t size) {
  uint64_t number = 0;
  for (size_t i = size; i-- > 0;) number = number << 8 | static_cast<uint8_t>(bytes[at + i]);
  return number;
}

bool Fits(absl::string_view bytes, uint64_t at, uint64_t size) {
  return at <= bytes.size() && size <= bytes.size() - at;
}

// The place of the central directory, and its number of entries.
struct Directory {
  uint64_t offset = 0, entries = 0;
};

absl::StatusOr<Directory> FindDirectory(absl::string_view bytes) {
  if (bytes.size() < kEndSize) return Broken("it is too short");
  const size_t last = bytes.size() - kEndSize;
  size_t end = last;
  while (Number(bytes, end, 4) != kEnd) {
    if (end == 0 || last - end == kLongestComment) return Broken("it has no directory");
    --end;
  }
  Directory directory = {Number(bytes, end + 16, 4), Number(bytes, end + 10, 2)};
  if (end < kLocator64Size || Number(bytes, end - kLocator64Size, 4) != kEndLocator64)
    return directory;
  const uint64_t at = Number(bytes, end - kLocator64Size + 8, 8);
  if (!Fits(bytes, at, kEnd64Size) || Number(bytes, at, 4) != kEnd64)
    return Broken("its 64-bit directory is not there");
  return Directory{Number(bytes, at + 48, 8), Number(bytes, at + 32, 8)};
}

struct Entry {
  std::string name;
  uint64_t method = 0, stored = 0, size = 0, local = 0;
};

// Replaces what stands in 64 bits in the extra field.
absl::Status ReadExtra(absl::string_view extra, Entry* entry) {
  while (extra.size() >= 4) {
    const uint64_t id = Number(extra, 0, 2), size = Number(extra, 2, 2);
    if (!Fits(extra, 4, size)) return Broken("an extra field is cut off");
    absl::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != 1) continue;
    for (uint64_t* number : {&entry->size, &entry->stored, &entry->local}) {
      if (*number != kElsewhere) continue;
      if (field.size() < 8) return Broken("a 64-bit size is missing");
      *number = Number(field, 0, 8);
      field.remove_prefix(8);
    }
  }
  return absl::OkStatus();
}

// Reads the entry of the directory that begins at *at, which becomes the place behind it.
absl::StatusOr<Entry> ReadEntry(absl::string_view bytes, uint64_t* at) {
  if (!Fits(bytes, *at, kCentralSize) || Number(bytes, *at, 4) != kCentral)
    return Broken("its directory is cut off");
  const size_t start = *at;
  const uint64_t name = Number(bytes, start + 28, 2), extra = Number(bytes, start + 30, 2);
  const uint64_t comment = Number(bytes, start + 32, 2);
  if (!Fits(bytes, start + kCentralSize, name + extra + comment))
    return Broken("its directory is cut off");
  Entry entry;
  entry.name = std::string(bytes.substr(start + kCentralSize, name));
  entry.method = Number(bytes, start + 10, 2);
  entry.stored = Number(bytes, start + 20, 4);
  entry.size = Number(bytes, start + 24, 4);
  entry.local = Number(bytes, start + 42, 4);
  MEGATRON_RETURN_IF_ERROR(ReadExtra(bytes.substr(start + kCentralSize + name, extra), &entry));
  *at = start + kCentralSize + name + extra + comment;
  return entry;
}

absl::StatusOr<absl::string_view> ContentsOf(absl::string_view bytes, const Entry& entry) {
  if (entry.method != 0 || entry.stored != entry.size)
    return Broken(absl::StrCat(entry.name, " is compressed"));
  if (!Fits(bytes, entry.local, kLocalSize) || Number(bytes, entry.local, 4) != kLocal)
    return Broken(absl::StrCat(entry.name, " is not where the directory says"));
  const uint64_t begin = entry.local + kLocalSize + Number(bytes, entry.local + 26, 2) +
                         Number(bytes, entry.local + 28, 2);
  if (!Fits(bytes, begin, entry.size)) return Broken(absl::StrCat(entry.name, " is cut off"));
  return bytes.substr(begin, entry.size);
}

}  // namespace

absl::StatusOr<ZipArchive> ZipArchive::Parse(absl::string_view bytes) {
  MEGATRON_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(bytes));
  ZipArchive archive;
  uint64_t at = directory.offset;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    MEGATRON_ASSIGN_OR_RETURN(const Entry entry, ReadEntry(bytes, &at));
    MEGATRON_ASSIGN_OR_RETURN(const absl::string_view contents, ContentsOf(bytes, entry));
    const size_t folder = entry.name.find('/');
    if (folder == std::string::npos) continue;
    if (!archive.entries_.emplace(entry.name.substr(folder + 1), contents).second)
      return Broken(absl::StrCat(entry.name, " is there twice"));
  }
  return archive;
}

const absl::string_view* ZipArchive::Find(absl::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

}  // namespace megatron
