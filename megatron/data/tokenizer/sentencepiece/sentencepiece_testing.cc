#include "megatron/data/tokenizer/sentencepiece/sentencepiece_testing.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace megatron {
namespace {

using Kind = SentencePieceModel::Kind;

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

std::string U32(uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift));
  return bytes;
}

std::string Number(int field, uint64_t value) {
  return Varint(static_cast<uint64_t>(field) << 3) + Varint(value);
}

std::string Bytes(int field, absl::string_view value) {
  return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(value.size()) + std::string(value);
}

std::string Float(int field, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return Varint(static_cast<uint64_t>(field) << 3 | 5) + U32(bits);
}

}  // namespace

std::string SerializeSentencePieceModel(const SentencePieceModel& model) {
  std::string bytes;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    bytes += Bytes(1, Bytes(1, piece.text) + Float(2, piece.score) +
                          Number(3, static_cast<uint64_t>(piece.kind)));
  }
  bytes += Bytes(2, Number(3, static_cast<uint64_t>(model.type)) +
                        Number(24, model.treat_whitespace_as_suffix) +
                        Number(35, model.byte_fallback) + Bytes(44, model.unk_surface) +
                        Bytes(45, model.unk_piece) + Bytes(46, model.bos_piece) +
                        Bytes(47, model.eos_piece) + Bytes(48, model.pad_piece));
  bytes +=
      Bytes(3, Bytes(2, model.normalizer.charsmap) + Number(3, model.normalizer.add_dummy_prefix) +
                   Number(4, model.normalizer.remove_extra_whitespaces) +
                   Number(5, model.normalizer.escape_whitespaces));
  return bytes + Bytes(5, Bytes(2, model.denormalizer_charsmap));
}

SentencePieceModel MakeSentencePieceModel(SentencePieceModel::Type type,
                                          const std::vector<std::pair<std::string, float>>& pieces,
                                          bool bytes) {
  SentencePieceModel model;
  model.type = type;
  model.byte_fallback = bytes;
  model.pieces = {
      {"<unk>", 0, Kind::kUnknown}, {"<s>", 0, Kind::kControl}, {"</s>", 0, Kind::kControl}};
  for (int byte = 0; bytes && byte < 256; ++byte) {
    model.pieces.push_back({absl::StrFormat("<0x%02X>", byte), 0, Kind::kByte});
  }
  for (const auto& piece : pieces)
    model.pieces.push_back({piece.first, piece.second, Kind::kNormal});
  return model;
}

// Every node gets a block of 256 units, in which its children are at the index of their labels. The
// root, at 0, is in block 0; the first block for other nodes is 1. A block's first unit, label 0,
// is the leaf.
std::string MakeCharsmap(const std::vector<std::pair<std::string, std::string>>& rules) {
  constexpr uint32_t kHasLeaf = 1 << 8, kLeaf = 1u << 31;
  std::vector<uint32_t> units(512, 0xff);
  std::string strings;
  const auto point = [&](size_t node, size_t target) {
    units[node] |= static_cast<uint32_t>(node ^ target) << 10;
  };
  point(0, 256);
  for (const auto& rule : rules) {
    size_t block = 256;
    size_t node = 0;
    for (size_t i = 0; i < rule.first.size(); ++i) {
      const auto label = static_cast<unsigned char>(rule.first[i]);
      node = block + label;
      const bool is_new = (units[node] & 0xff) != label || label == 0xff;
      if (!is_new) return "";
      units[node] = label;
      block = units.size();
      units.resize(units.size() + 256, 0xff);
      // The children of `node` are at (node ^ offset) ^ label.
      point(node, block);
    }
    units[node] |= kHasLeaf;
    units[block] = kLeaf | static_cast<uint32_t>(strings.size());
    strings += rule.second;
    strings.push_back('\0');
  }
  units[0] &= ~0xffu;
  std::string bytes = U32(static_cast<uint32_t>(4 * units.size()));
  for (const uint32_t unit : units) bytes += U32(unit);
  return bytes + strings;
}

}  // namespace megatron
