#include "megatron/data/text/json_string.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "megatron/data/little_endian.h"
#include "megatron/data/text/utf8_scan.h"

namespace megatron {
namespace {

constexpr uint64_t kOnes = 0x0101010101010101u;
constexpr uint64_t kHighBits = kOnes * 0x80;

// Sets the high bit of every byte at which a string scan must stop: a quote, a backslash, a control
// character, or a byte beyond ASCII. Bits above the lowest one set may be wrong, but the first stop
// is right.
uint64_t StopBits(uint64_t bytes) {
  const uint64_t quote = bytes ^ (kOnes * '"');
  const uint64_t backslash = bytes ^ (kOnes * '\\');
  return (((quote - kOnes) & ~quote) | ((backslash - kOnes) & ~backslash) |
          ((bytes - kOnes * 0x20) & ~bytes) | bytes) &
         kHighBits;
}

// Returns the first byte from `p` on at which a scan must stop, or `end`.
const char* SkipPlain(const char* p, const char* end) {
  for (; end - p >= 8; p += 8) {
    const uint64_t stops = StopBits(LoadLittleEndian<uint64_t>(p));
    if (stops != 0) return p + __builtin_ctzll(stops) / 8;
  }
  while (p != end && static_cast<unsigned char>(*p) >= 0x20 && *p != '"' && *p != '\\' &&
         static_cast<unsigned char>(*p) < 0x80) {
    ++p;
  }
  return p;
}

constexpr std::array<int8_t, 256> MakeHexValues() {
  std::array<int8_t, 256> values = {};
  for (int i = 0; i < 256; ++i) {
    values[i] = i >= '0' && i <= '9'   ? i - '0'
                : i >= 'a' && i <= 'f' ? i - 'a' + 10
                : i >= 'A' && i <= 'F' ? i - 'A' + 10
                                       : -1;
  }
  return values;
}
constexpr std::array<int8_t, 256> kHexValues = MakeHexValues();

// Returns the value of four hexadecimal digits, or a negative number if one is invalid.
int32_t HexValue(const char* p) {
  int32_t value = 0, bad = 0;
  for (int i = 0; i < 4; ++i) {
    const int32_t digit = kHexValues[static_cast<unsigned char>(p[i])];
    bad |= digit;
    value = value * 16 + digit;
  }
  return bad < 0 ? -1 : value;
}

char* PutUtf8(uint32_t c, char* out) {
  if (c < 0x80) {
    *out++ = static_cast<char>(c);
  } else if (c < 0x800) {
    *out++ = static_cast<char>(0xc0 | (c >> 6));
    *out++ = static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    *out++ = static_cast<char>(0xe0 | (c >> 12));
    *out++ = static_cast<char>(0x80 | ((c >> 6) & 0x3f));
    *out++ = static_cast<char>(0x80 | (c & 0x3f));
  } else {
    *out++ = static_cast<char>(0xf0 | (c >> 18));
    *out++ = static_cast<char>(0x80 | ((c >> 12) & 0x3f));
    *out++ = static_cast<char>(0x80 | ((c >> 6) & 0x3f));
    *out++ = static_cast<char>(0x80 | (c & 0x3f));
  }
  return out;
}

char EscapedCharacter(char letter) {
  switch (letter) {
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return letter;  // a quote, a slash or a backslash stands for itself
  }
}

// Returns the length of the escape at `p`, or 0 if it is invalid.
size_t EscapeLength(const char* p, const char* end) {
  const size_t left = static_cast<size_t>(end - p);
  if (left < 2) return 0;
  if (p[1] == 'u') return left >= 6 && HexValue(p + 2) >= 0 ? 6 : 0;
  return absl::string_view("\"\\/bfnrt").find(p[1]) == absl::string_view::npos ? 0 : 2;
}

}  // namespace

absl::string_view ScanJsonString(const char** at, const char* end, JsonString* string) {
  const char* const quote = *at;
  const char* p = quote + 1;
  string->has_escapes = false;
  while (true) {
    p = SkipPlain(p, end);
    if (p == end) {
      *at = quote;
      return "the string that begins here does not end";
    }
    if (*p == '"') break;
    *at = p;
    if (*p == '\\') {
      string->has_escapes = true;
      const size_t length = EscapeLength(p, end);
      if (length == 0) return "an escape that JSON does not have";
      p += length;
    } else if (static_cast<unsigned char>(*p) < 0x20) {
      return "a control character in a string";
    } else {
      // Characters beyond ASCII often come in runs.
      while (p != end && static_cast<unsigned char>(*p) >= 0x80) {
        *at = p;
        const size_t length = Utf8CharacterLength(p, end);
        if (length == 0) return kBadUtf8Problem;
        p += length;
      }
    }
  }
  string->raw = absl::string_view(quote + 1, static_cast<size_t>(p - quote - 1));
  *at = p + 1;
  return "";
}

bool AppendUnescapedJson(absl::string_view raw, std::string* text) {
  const size_t old_size = text->size();
  text->resize(old_size + raw.size());  // no escape is shorter than the text it stands for
  char* out = &(*text)[0] + old_size;
  const char* p = raw.data();
  const char* const end = p + raw.size();
  while (p != end) {
    if (*p != '\\') {
      const void* const found = std::memchr(p, '\\', static_cast<size_t>(end - p));
      const char* const stop = found == nullptr ? end : static_cast<const char*>(found);
      std::memcpy(out, p, static_cast<size_t>(stop - p));
      out += stop - p;
      p = stop;
    } else if (p[1] != 'u') {
      *out++ = EscapedCharacter(p[1]);
      p += 2;
    } else {
      uint32_t c = static_cast<uint32_t>(HexValue(p + 2));
      p += 6;
      if (c >= 0xdc00 && c < 0xe000) return false;
      if (c >= 0xd800 && c < 0xdc00) {
        if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return false;
        const uint32_t low = static_cast<uint32_t>(HexValue(p + 2));
        if (low < 0xdc00 || low >= 0xe000) return false;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        p += 6;
      }
      out = PutUtf8(c, out);
    }
  }
  text->resize(static_cast<size_t>(out - text->data()));
  return true;
}

void AppendJsonString(absl::string_view text, std::string* out) {
  constexpr absl::string_view kHexDigits = "0123456789abcdef";
  out->push_back('"');
  const char* p = text.data();
  const char* const end = p + text.size();
  while (true) {
    const char* stop = SkipPlain(p, end);
    while (stop != end && static_cast<unsigned char>(*stop) >= 0x80)
      stop = SkipPlain(stop + 1, end);
    out->append(p, static_cast<size_t>(stop - p));
    if (stop == end) break;
    const size_t letter = absl::string_view("\"\\\b\f\n\r\t").find(*stop);
    if (letter != absl::string_view::npos) {
      out->push_back('\\');
      out->push_back("\"\\bfnrt"[letter]);
    } else {
      const size_t value = static_cast<unsigned char>(*stop);
      absl::StrAppend(out, "\\u00", kHexDigits.substr(value / 16, 1),
                      kHexDigits.substr(value % 16, 1));
    }
    p = stop + 1;
  }
  out->push_back('"');
}

}  // namespace megatron
