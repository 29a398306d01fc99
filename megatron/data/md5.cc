#include "megatron/data/md5.h"

#include <array>
#include <cmath>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "megatron/data/little_endian.h"

namespace megatron {
namespace {

constexpr size_t kBlock = 64;
using State = std::array<uint32_t, 4>;

// The RFC's table: the first 32 bits after the binary point of |sin(1)|, |sin(2)|, …
const std::array<uint32_t, 64>& Sines() {
  static const auto sines = [] {
    std::array<uint32_t, 64> table;
    for (int i = 0; i < 64; ++i)
      table[i] = static_cast<uint32_t>(std::floor(std::fabs(std::sin(i + 1.0)) * 4294967296.0));
    return table;
  }();
  return sines;
}

uint32_t RotateLeft(uint32_t x, int bits) { return x << bits | x >> (32 - bits); }

// Returns the word of the block that step i uses.
int WordOf(int i) {
  constexpr int kFactor[] = {1, 5, 3, 7}, kStart[] = {0, 1, 5, 0};
  return (kFactor[i / 16] * i + kStart[i / 16]) % 16;
}

uint32_t Mix(int round, uint32_t x, uint32_t y, uint32_t z) {
  switch (round) {
    case 0:
      return (x & y) | (~x & z);
    case 1:
      return (x & z) | (y & ~z);
    case 2:
      return x ^ y ^ z;
    default:
      return y ^ (x | ~z);
  }
}

void AddBlock(const char* block, State* state) {
  constexpr int kRotations[4][4] = {
      {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  auto [a, b, c, d] = *state;
  for (int i = 0; i < 64; ++i) {
    const int round = i / 16;
    const uint32_t word = LoadLittleEndian<uint32_t>(block, WordOf(i));
    const uint32_t sum = a + Mix(round, b, c, d) + word + Sines()[i];
    a = d;
    d = c;
    c = b;
    b += RotateLeft(sum, kRotations[round][i % 4]);
  }
  const State added = {a, b, c, d};
  for (size_t i = 0; i < added.size(); ++i) (*state)[i] += added[i];
}

}  // namespace

std::string Md5Hex(absl::string_view data) {
  State state = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u};
  const uint64_t bits = uint64_t{8} * data.size();
  for (; data.size() >= kBlock; data.remove_prefix(kBlock)) AddBlock(data.data(), &state);
  // The message ends with its last bytes, a one bit, zeros, and the number of bits, in one block or
  // two.
  std::string rest(data);
  rest.push_back('\x80');
  rest.resize((rest.size() + 8 + kBlock - 1) / kBlock * kBlock - 8);
  AppendLittleEndian(bits, &rest);
  for (size_t at = 0; at < rest.size(); at += kBlock) AddBlock(rest.data() + at, &state);
  std::string digest;
  for (const uint32_t word : state) AppendLittleEndian(word, &digest);
  return absl::BytesToHexString(digest);
}

}  // namespace megatron
