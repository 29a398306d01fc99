// The spelling of a manifest: written and read side by side, line for line
// (docs/checkpoint_format.md).

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/charconv.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/names.h"

namespace megatron {
namespace {

constexpr absl::string_view kCrcPrefix = "{\"crc32c\":\"";
constexpr absl::string_view kCrcSuffix = "\",\n";
constexpr size_t kCrcDigits = 8;
constexpr size_t kBodyAt = kCrcPrefix.size() + kCrcDigits + kCrcSuffix.size();

std::string CrcText(uint32_t crc) { return absl::StrFormat("%08x", crc); }

// Writing.

// Bytes that are not plain ASCII become \u00xx, each by itself: any bytes come back as they were.
std::string Quote(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const bool plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
    if (plain) {
      out.push_back(c);
    } else {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned char>(c));
    }
  }
  out.push_back('"');
  return out;
}

// The shortest decimal that reads back as the same bits. JSON has no numbers for the other values:
// they are strings.
std::string FloatText(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  char buffer[32];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, end.ptr);
}

std::string ShapeText(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

// Appends "[", each item on a line of its own, "]"; or with other brackets.
template <typename Items, typename Append>
void AppendList(absl::string_view brackets, const Items& items, std::string* out, Append append) {
  out->push_back(brackets[0]);
  absl::string_view separator = "\n";
  for (const auto& item : items) {
    absl::StrAppend(out, separator);
    append(item);
    separator = ",\n";
  }
  out->push_back(brackets[1]);
}

void AppendPiece(const TensorEntry& tensor, const Piece& piece, std::string* out) {
  absl::StrAppend(out, "{\"shard\":", piece.shard, ",\"offset\":", piece.offset,
                  ",\"bytes\":", PieceBytes(tensor, piece),
                  ",\"start\":", ShapeText(piece.rectangle.start),
                  ",\"extent\":", ShapeText(piece.rectangle.extent), ",\"crc32c\":\"");
  for (const uint32_t crc : piece.crcs) absl::StrAppend(out, CrcText(crc));
  absl::StrAppend(out, "\"}");
}

void AppendTensor(const TensorEntry& tensor, std::string* out) {
  absl::StrAppend(out, "{\"name\":\"", tensor.name, "\",\"dtype\":\"", Name(tensor.dtype),
                  "\",\"shape\":", ShapeText(tensor.shape), ",\"pieces\":");
  AppendList("[]", tensor.pieces, out,
             [&](const Piece& piece) { AppendPiece(tensor, piece, out); });
  out->push_back('}');
}

std::string BodyText(const Manifest& manifest) {
  std::string out =
      absl::StrCat("\"format\":\"megatron-checkpoint\",\n\"version\":", kCheckpointFormatVersion,
                   ",\n\"run_id\":\"", manifest.run_id, "\",\n\"iteration\":", manifest.iteration,
                   ",\n\"chunk_bytes\":", manifest.chunk_bytes,
                   ",\n\"shard_count\":", manifest.shard_count, ",\n\"ints\":");
  AppendList("{}", manifest.ints, &out, [&](const auto& entry) {
    absl::StrAppend(&out, "\"", entry.first, "\":", entry.second);
  });
  absl::StrAppend(&out, ",\n\"floats\":");
  AppendList("{}", manifest.floats, &out, [&](const auto& entry) {
    absl::StrAppend(&out, "\"", entry.first, "\":", FloatText(entry.second));
  });
  absl::StrAppend(&out, ",\n\"strings\":");
  AppendList("{}", manifest.strings, &out, [&](const auto& entry) {
    absl::StrAppend(&out, "\"", entry.first, "\":", Quote(entry.second));
  });
  absl::StrAppend(&out, ",\n\"shards\":");
  AppendList("[]", manifest.shards, &out, [&](const ShardEntry& shard) {
    absl::StrAppend(&out, "{\"file\":\"", ShardFileName(shard.index, manifest.shard_count),
                    "\",\"bytes\":", shard.bytes, "}");
  });
  absl::StrAppend(&out, ",\n\"tensors\":");
  AppendList("[]", manifest.tensors, &out,
             [&](const TensorEntry& tensor) { AppendTensor(tensor, &out); });
  absl::StrAppend(&out, "}\n");
  return out;
}

// Reading.

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// Walks through the text. The first failure sticks: from then on everything returns zeros and
// nothing is consumed.
class Scanner {
 public:
  Scanner(absl::string_view text, size_t first_byte) : text_(text), first_byte_(first_byte) {}

  const absl::Status& status() const { return status_; }
  bool failed() const { return !status_.ok(); }

  void Fail(absl::string_view why) {
    if (failed()) return;
    status_ = absl::DataLossError(absl::StrCat("at byte ", first_byte_ + position_, ": ", why));
  }

  bool Consume(absl::string_view literal) {
    if (failed() || text_.substr(position_, literal.size()) != literal) return false;
    position_ += literal.size();
    return true;
  }

  void Expect(absl::string_view literal) {
    if (!Consume(literal)) Fail(absl::StrCat("expected ", Quote(literal)));
  }

  void ExpectEnd() {
    if (position_ != text_.size()) Fail("expected the end of the file");
  }

  int64_t Int() {
    const absl::string_view token = Token("-0123456789");
    int64_t value = 0;
    // Only the canonical spelling is read: no leading zeros, no "-0".
    if (!absl::SimpleAtoi(token, &value) || absl::StrCat(value) != token) {
      Fail("expected an integer of at most 64 bits");
    }
    return value;
  }

  int SmallInt() {
    const int64_t value = Int();
    if (value < 0 || value > std::numeric_limits<int>::max()) Fail("the number is out of range");
    return failed() ? 0 : static_cast<int>(value);
  }

  double Float() {
    if (Consume("\"nan\"")) return std::numeric_limits<double>::quiet_NaN();
    if (Consume("\"inf\"")) return std::numeric_limits<double>::infinity();
    if (Consume("\"-inf\"")) return -std::numeric_limits<double>::infinity();
    const absl::string_view token = Token("+-.0123456789e");
    double value = 0;
    const auto end = absl::from_chars(token.data(), token.data() + token.size(), value);
    if (end.ec != std::errc() || FloatText(value) != token) Fail("expected a number");
    return value;
  }

  std::string String() {
    Expect("\"");
    std::string out;
    while (!failed() && !Consume("\"")) {
      const char c = position_ < text_.size() ? text_[position_] : '\0';
      if (c == '\\') {
        out.push_back(Escape());
      } else if (c >= 0x20 && c < 0x7f) {
        out.push_back(c);
        ++position_;
      } else {
        Fail("expected a string");
      }
    }
    return out;
  }

  uint32_t Crc() {
    uint32_t crc = 0;
    for (size_t i = 0; i < kCrcDigits; ++i) {
      const int digit = position_ < text_.size() ? HexDigit(text_[position_]) : -1;
      if (digit < 0) Fail("expected a hexadecimal digit");
      if (failed()) return 0;
      crc = crc * 16 + static_cast<uint32_t>(digit);
      ++position_;
    }
    return crc;
  }

  template <typename Item>
  void List(absl::string_view brackets, Item item) {
    Expect(brackets.substr(0, 1));
    if (Consume(brackets.substr(1, 1))) return;
    do {
      Expect("\n");
      if (!failed()) item();
    } while (Consume(","));
    Expect(brackets.substr(1, 1));
  }

 private:
  // The longest run of these characters.
  absl::string_view Token(absl::string_view characters) {
    if (failed()) return "";
    const size_t end = std::min(text_.size(), text_.find_first_not_of(characters, position_));
    const absl::string_view token = text_.substr(position_, end - position_);
    position_ = end;
    return token;
  }

  char Escape() {
    Expect("\\u00");
    int value = 0;
    for (int i = 0; i < 2; ++i) {
      const int digit = position_ < text_.size() ? HexDigit(text_[position_]) : -1;
      if (digit < 0) Fail("expected \\u00 and two hexadecimal digits");
      if (failed()) return '\0';
      value = value * 16 + digit;
      ++position_;
    }
    return static_cast<char>(value);
  }

  const absl::string_view text_;
  const size_t first_byte_;  // place of text_ in the file
  size_t position_ = 0;
  absl::Status status_;
};

Shape ScanShape(Scanner* in) {
  std::vector<int64_t> dims;
  in->Expect("[");
  if (in->Consume("]")) return Shape();
  do {
    dims.push_back(in->Int());
    if (dims.size() > Shape::kMaxRank) in->Fail("a shape has too many dims");
  } while (in->Consume(","));
  in->Expect("]");
  return in->failed() ? Shape() : Shape(dims);
}

template <typename Value, typename Scan>
void ScanMap(Scanner* in, std::map<std::string, Value>* map, Scan scan) {
  in->List("{}", [&] {
    std::string name = in->String();
    in->Expect(":");
    if (!map->empty() && map->rbegin()->first >= name) in->Fail("names are not ascending");
    Value value = scan();
    if (!in->failed()) map->emplace_hint(map->end(), std::move(name), std::move(value));
  });
}

Piece ScanPiece(Scanner* in) {
  Piece piece;
  in->Expect("{\"shard\":");
  piece.shard = in->SmallInt();
  in->Expect(",\"offset\":");
  piece.offset = in->Int();
  in->Expect(",\"bytes\":");
  in->Int();  // It follows from the extent; ParseManifest compares.
  in->Expect(",\"start\":");
  piece.rectangle.start = ScanShape(in);
  in->Expect(",\"extent\":");
  piece.rectangle.extent = ScanShape(in);
  in->Expect(",\"crc32c\":\"");
  while (!in->failed() && !in->Consume("\"}")) piece.crcs.push_back(in->Crc());
  return piece;
}

TensorEntry ScanTensor(Scanner* in) {
  TensorEntry tensor;
  in->Expect("{\"name\":");
  tensor.name = in->String();
  in->Expect(",\"dtype\":");
  if (!FromName(in->String(), &tensor.dtype)) in->Fail("the dtype is not known");
  in->Expect(",\"shape\":");
  tensor.shape = ScanShape(in);
  in->Expect(",\"pieces\":");
  in->List("[]", [&] { tensor.pieces.push_back(ScanPiece(in)); });
  in->Expect("}");
  return tensor;
}

Manifest ScanBody(Scanner* in) {
  Manifest manifest;
  in->Expect("\"format\":\"megatron-checkpoint\",\n\"version\":");
  if (const int64_t version = in->Int(); version != kCheckpointFormatVersion) {
    in->Fail(absl::StrCat("the format has version ", version, ", this program reads version ",
                          kCheckpointFormatVersion));
  }
  in->Expect(",\n\"run_id\":");
  manifest.run_id = in->String();
  in->Expect(",\n\"iteration\":");
  manifest.iteration = in->Int();
  in->Expect(",\n\"chunk_bytes\":");
  manifest.chunk_bytes = in->Int();
  in->Expect(",\n\"shard_count\":");
  manifest.shard_count = in->SmallInt();
  in->Expect(",\n\"ints\":");
  ScanMap(in, &manifest.ints, [in] { return in->Int(); });
  in->Expect(",\n\"floats\":");
  ScanMap(in, &manifest.floats, [in] { return in->Float(); });
  in->Expect(",\n\"strings\":");
  ScanMap(in, &manifest.strings, [in] { return in->String(); });
  in->Expect(",\n\"shards\":");
  in->List("[]", [&] {
    ShardEntry shard;
    in->Expect("{\"file\":");
    if (!ParseShardFileName(in->String(), &shard.index)) in->Fail("expected the name of a shard");
    in->Expect(",\"bytes\":");
    shard.bytes = in->Int();
    in->Expect("}");
    manifest.shards.push_back(shard);
  });
  in->Expect(",\n\"tensors\":");
  in->List("[]", [&] { manifest.tensors.push_back(ScanTensor(in)); });
  in->Expect("}\n");
  in->ExpectEnd();
  return manifest;
}

absl::Status CheckCrc(absl::string_view text) {
  const absl::string_view digits =
      text.substr(std::min(text.size(), kCrcPrefix.size()), kCrcDigits);
  const absl::string_view body = text.substr(std::min(text.size(), kBodyAt));
  if (text.substr(0, kBodyAt) != absl::StrCat(kCrcPrefix, digits, kCrcSuffix)) {
    return absl::DataLossError("the first line is not that of a checkpoint's manifest");
  }
  if (const std::string crc = CrcText(Crc32c(body)); crc != digits) {
    return absl::DataLossError(absl::StrCat("bytes [", kBodyAt, ", ", text.size(),
                                            ") have the CRC-32C ", crc, ", the first line says ",
                                            digits, ": the file is damaged or was edited"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string SerializeManifest(const Manifest& manifest) {
  std::string text = BodyText(manifest);
  text.insert(0, absl::StrCat(kCrcPrefix, CrcText(Crc32c(text)), kCrcSuffix));
  return text;
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  MEGATRON_RETURN_IF_ERROR(CheckCrc(text));
  Scanner in(text.substr(kBodyAt), kBodyAt);
  Manifest manifest = ScanBody(&in);
  MEGATRON_RETURN_IF_ERROR(in.status());
  MEGATRON_RETURN_IF_ERROR(CheckManifest(manifest));
  // The errors that remain are other spellings of the same, such as a byte count that its rectangle
  // contradicts.
  if (SerializeManifest(manifest) != text) {
    return absl::DataLossError("it is not spelled as a checkpoint's manifest is");
  }
  return manifest;
}

}  // namespace megatron
