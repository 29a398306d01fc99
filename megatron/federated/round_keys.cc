#include "megatron/federated/round_keys.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "sodium.h"

namespace megatron {
namespace {

static_assert(crypto_scalarmult_BYTES == kKeyBytes, "the size of X25519's keys");
static_assert(crypto_aead_xchacha20poly1305_ietf_KEYBYTES == kKeyBytes, "the cipher's key");
static_assert(crypto_stream_chacha20_KEYBYTES == kKeyBytes, "the stream's key");

constexpr int64_t kWordsPerBlock = 16;

// Chooses the implementations and opens the system's generator, once for the process.
void UseSodium() {
  static const int result = sodium_init();
  CHECK_GE(result, 0) << "sodium_init failed";
}

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

void Update(crypto_generichash_state* state, absl::string_view text) {
  crypto_generichash_update(state, Bytes(text), text.size());
}

void Update(crypto_generichash_state* state, const Key& key) {
  crypto_generichash_update(state, key.data(), key.size());
}

template <typename Combine>
void CombineStream(const Key& seed, int64_t first, absl::Span<uint32_t> values,
                   const Combine& combine) {
  UseSodium();
  CHECK_GE(first, 0);
  constexpr unsigned char kNonce[crypto_stream_chacha20_NONCEBYTES] = {};
  constexpr size_t kChunkWords = 256 * kWordsPerBlock;
  unsigned char bytes[4 * kChunkWords];
  size_t skipped = first % kWordsPerBlock;
  uint64_t block = first / kWordsPerBlock;
  for (size_t done = 0; done < values.size(); block += kChunkWords / kWordsPerBlock, skipped = 0) {
    const size_t count = std::min(kChunkWords - skipped, values.size() - done);
    const size_t size = 4 * (skipped + count);
    std::memset(bytes, 0, size);
    crypto_stream_chacha20_xor_ic(bytes, bytes, size, kNonce, block, seed.data());
    const unsigned char* word = bytes + 4 * skipped;
    for (size_t i = 0; i < count; ++i, word += 4) {
      combine(&values[done + i], uint32_t{word[0]} | uint32_t{word[1]} << 8 |
                                     uint32_t{word[2]} << 16 | uint32_t{word[3]} << 24);
    }
    done += count;
  }
  sodium_memzero(bytes, sizeof(bytes));
}

}  // namespace

Key RandomKey() {
  UseSodium();
  Key key;
  randombytes_buf(key.data(), key.size());
  return key;
}

Key PublicKeyOf(const Key& secret) {
  UseSodium();
  Key public_key;
  CHECK_EQ(crypto_scalarmult_base(public_key.data(), secret.data()), 0);
  return public_key;
}

KeyPair MakeKeyPair() {
  KeyPair pair;
  pair.secret = RandomKey();
  pair.public_key = PublicKeyOf(pair.secret);
  return pair;
}

absl::StatusOr<Key> AgreeOnKey(const KeyPair& own, const Key& other_public,
                               absl::string_view purpose) {
  UseSodium();
  Key shared;
  if (crypto_scalarmult(shared.data(), own.secret.data(), other_public.data()) != 0) {
    return absl::InvalidArgumentError(
        "a public key of X25519 is a point of small order, with which all agree on the same key");
  }
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, kKeyBytes);
  Update(&state, shared);
  Update(&state, std::min(own.public_key, other_public));
  Update(&state, std::max(own.public_key, other_public));
  Update(&state, purpose);
  Key key;
  crypto_generichash_final(&state, key.data(), key.size());
  sodium_memzero(shared.data(), shared.size());
  sodium_memzero(&state, sizeof(state));
  return key;
}

Key DigestOf(const Key& secret, absl::string_view purpose) {
  UseSodium();
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, kKeyBytes);
  Update(&state, secret);
  Update(&state, purpose);
  Key digest;
  crypto_generichash_final(&state, digest.data(), digest.size());
  sodium_memzero(&state, sizeof(state));
  return digest;
}

std::string Seal(const Key& key, absl::string_view text, absl::string_view purpose) {
  UseSodium();
  constexpr size_t kNonce = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES;
  std::string sealed(kNonce + text.size() + crypto_aead_xchacha20poly1305_ietf_ABYTES, '\0');
  unsigned char* const out = reinterpret_cast<unsigned char*>(&sealed[0]);
  randombytes_buf(out, kNonce);
  crypto_aead_xchacha20poly1305_ietf_encrypt(out + kNonce, nullptr, Bytes(text), text.size(),
                                             Bytes(purpose), purpose.size(), nullptr, out,
                                             key.data());
  return sealed;
}

absl::StatusOr<std::string> Unseal(const Key& key, absl::string_view sealed,
                                   absl::string_view purpose) {
  UseSodium();
  constexpr size_t kNonce = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES;
  constexpr size_t kAdded = kNonce + crypto_aead_xchacha20poly1305_ietf_ABYTES;
  if (sealed.size() < kAdded) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a sealed message of ", sealed.size(), " bytes is too short; it has at least ", kAdded));
  }
  std::string text(sealed.size() - kAdded, '\0');
  // An empty text still needs a place to point at.
  unsigned char nothing;
  unsigned char* const out = text.empty() ? &nothing : reinterpret_cast<unsigned char*>(&text[0]);
  if (crypto_aead_xchacha20poly1305_ietf_decrypt(out, nullptr, nullptr, Bytes(sealed) + kNonce,
                                                 sealed.size() - kNonce, Bytes(purpose),
                                                 purpose.size(), Bytes(sealed), key.data()) != 0) {
    return absl::InvalidArgumentError(
        "a sealed message was made with another key or for another purpose, or was changed");
  }
  return text;
}

void AddStream(const Key& seed, int64_t first, absl::Span<uint32_t> values) {
  CombineStream(seed, first, values, [](uint32_t* value, uint32_t word) { *value += word; });
}

void SubtractStream(const Key& seed, int64_t first, absl::Span<uint32_t> values) {
  CombineStream(seed, first, values, [](uint32_t* value, uint32_t word) { *value -= word; });
}

}  // namespace megatron
