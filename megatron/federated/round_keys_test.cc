#include "megatron/federated/round_keys.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/escaping.h"
#include "gtest/gtest.h"
#include "sodium.h"

namespace megatron {
namespace {

using absl_testing::StatusIs;

Key FromHex(absl::string_view hex) {
  std::string bytes;
  EXPECT_TRUE(absl::HexStringToBytes(hex, &bytes));
  Key key;
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

std::string Hex(const Key& key) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(key.data()), key.size()});
}

// Keys of NaCl's paper that RFC 7748, section 6.1, uses too.
constexpr char kAliceSecret[] = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";
constexpr char kBobSecret[] = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb";

TEST(RoundKeysTest, PublicKeysAreThePublishedOnes) {
  EXPECT_EQ(Hex(PublicKeyOf(FromHex(kAliceSecret))),
            "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
  EXPECT_EQ(Hex(PublicKeyOf(FromHex(kBobSecret))),
            "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
}

TEST(RoundKeysTest, TheSharedPointIsThePublishedOne) {
  const Key alice = FromHex(kAliceSecret), bob = PublicKeyOf(FromHex(kBobSecret));
  Key shared;
  ASSERT_EQ(crypto_scalarmult(shared.data(), alice.data(), bob.data()), 0);
  EXPECT_EQ(Hex(shared), "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
}

TEST(RoundKeysTest, BothSidesAgreeOnOneKeyForOnePurpose) {
  const KeyPair alice = MakeKeyPair(), bob = MakeKeyPair(), carol = MakeKeyPair();
  const Key key = AgreeOnKey(alice, bob.public_key, "mask").value();
  EXPECT_EQ(key, AgreeOnKey(bob, alice.public_key, "mask").value());
  EXPECT_NE(key, AgreeOnKey(bob, alice.public_key, "seal").value());
  EXPECT_NE(key, AgreeOnKey(alice, carol.public_key, "mask").value());
  EXPECT_THAT(AgreeOnKey(alice, Key{}, "mask"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RoundKeysTest, OnlyTheSameKeyAndPurposeUnsealAMessage) {
  const Key key = RandomKey();
  for (const std::string& text : {std::string(), std::string("a text"), std::string(1000, '\0')}) {
    const std::string sealed = Seal(key, text, "1 to 2");
    EXPECT_EQ(Unseal(key, sealed, "1 to 2").value(), text);
    EXPECT_THAT(Unseal(key, sealed, "2 to 1"), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(Unseal(RandomKey(), sealed, "1 to 2"),
                StatusIs(absl::StatusCode::kInvalidArgument));
    for (size_t i = 0; i < sealed.size(); ++i) {
      std::string changed = sealed;
      changed[i] = static_cast<char>(changed[i] ^ 1);
      EXPECT_FALSE(Unseal(key, changed, "1 to 2").ok()) << i;
      EXPECT_FALSE(Unseal(key, sealed.substr(0, i), "1 to 2").ok()) << i;
    }
  }
}

TEST(RoundKeysTest, StreamIsThePublishedOfChaCha20) {
  // RFC 8439, appendix A.1, test vectors 1 and 2: a key and a nonce of zeros, blocks 0 and 1.
  std::vector<uint32_t> words(32, 0);
  AddStream(Key{}, 0, absl::MakeSpan(words));
  EXPECT_EQ(words[0], 0xade0b876u);
  EXPECT_EQ(words[1], 0x903df1a0u);
  EXPECT_EQ(words[16], 0xbee7079fu);
}

TEST(RoundKeysTest, AnyPartOfAStreamIsItsPart) {
  const Key seed = RandomKey();
  std::vector<uint32_t> whole(10000, 7);
  AddStream(seed, 0, absl::MakeSpan(whole));
  for (const int64_t first : {0, 1, 15, 16, 17, 4095, 4096, 5001}) {
    for (const int64_t count : {0, 1, 15, 16, 33, 4097}) {
      std::vector<uint32_t> part(count, 7);
      AddStream(seed, first, absl::MakeSpan(part));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first))
          << first << " " << count;
      SubtractStream(seed, first, absl::MakeSpan(part));
      EXPECT_EQ(part, std::vector<uint32_t>(count, 7));
    }
  }
}

}  // namespace
}  // namespace megatron
