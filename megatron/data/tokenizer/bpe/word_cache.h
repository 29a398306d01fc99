// A cache of the tokens of short pieces of text that occurred recently.
//
// It grows to at most 2 MiB while pieces are new; a piece replaces another one with the same hash.
// Not thread-safe: each thread has its own.
#ifndef MEGATRON_DATA_TOKENIZER_BPE_WORD_CACHE_H_
#define MEGATRON_DATA_TOKENIZER_BPE_WORD_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace megatron {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 24;
  static constexpr size_t kMaxIds = 9;

  // An entry is one cache line.
  struct alignas(64) Entry {
    uint64_t word[3] = {0, 0, 0};  // padded with zeros
    int32_t ids[kMaxIds] = {};
    uint8_t num_bytes = 0;  // 0: empty
    uint8_t num_ids = 0;
  };

  WordCache() : entries_(size_t{1} << kMinBits) {}

  // Returns the entry of the word of `size` bytes, 1 to kMaxBytes; bytes up to `text_end` may be
  // read. If `*found`, the entry holds the word. Otherwise it is now assigned to the word, without
  // ids, and the caller fills them in. Entries are valid until the next call.
  Entry* Find(const char* word, size_t size, const char* text_end, bool* found) {
    uint64_t key[3];
    key[0] = Load(word, size, text_end);
    key[1] = size > 8 ? Load(word + 8, size - 8, text_end) : 0;
    key[2] = size > 16 ? Load(word + 16, size - 16, text_end) : 0;
    if (misses_ > 2 * entries_.size() && bits_ < kMaxBits) Grow();
    Entry* const entry = &entries_[Hash(key, size) >> (64 - bits_)];
    *found = entry->word[0] == key[0] && entry->word[1] == key[1] && entry->word[2] == key[2] &&
             entry->num_bytes == size;
    if (!*found) {
      ++misses_;
      std::memcpy(entry->word, key, sizeof(key));
      entry->num_bytes = static_cast<uint8_t>(size);
      entry->num_ids = 0;
    }
    return entry;
  }

  // Removes a word whose ids do not fit.
  static void Forget(Entry* entry) { entry->num_bytes = 0; }

 private:
  static constexpr int kMinBits = 7, kMaxBits = 15;

  // Growing drops all entries, which soon fill again.
  void Grow() {
    bits_ += 2;
    misses_ = 0;
    entries_.assign(size_t{1} << bits_, Entry());
  }

  // Returns the first bytes at `p`, at most 8 of `size`.
  static uint64_t Load(const char* p, size_t size, const char* text_end) {
    uint64_t value = 0;
    if (text_end - p >= 8) {
      std::memcpy(&value, p, 8);
      return size >= 8 ? value : value & (~uint64_t{0} >> (64 - 8 * size));
    }
    std::memcpy(&value, p, size < 8 ? size : 8);
    return value;
  }

  // The upper bits of the hash are the well mixed ones.
  static uint64_t Hash(const uint64_t* key, size_t size) {
    uint64_t h = (key[0] ^ size) * 0x9E3779B97F4A7C15u;
    h = (h ^ (h >> 32) ^ key[1]) * 0xD6E8FEB86659FD93u;
    h = (h ^ (h >> 32) ^ key[2]) * 0xCA5A826395121157u;
    return h;
  }

  int bits_ = kMinBits;
  size_t misses_ = 0;  // misses since the last growth
  std::vector<Entry> entries_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_WORD_CACHE_H_
