// Steps that turn the spellings of tokens back into text.
#ifndef MEGATRON_DATA_TOKENIZER_PIPELINE_TOKEN_DECODER_H_
#define MEGATRON_DATA_TOKENIZER_PIPELINE_TOKEN_DECODER_H_

#include <functional>
#include <string>
#include <vector>

namespace megatron {

// A step that changes spellings; after the last step they are joined to the text.
using TokenDecoder = std::function<void(std::vector<std::string>* pieces)>;

TokenDecoder ChainDecoders(std::vector<TokenDecoder> steps);

// Turns letters that stand for bytes (byte_level_alphabet.h) into these bytes. A token that is not
// spelled in this alphabet is kept.
TokenDecoder ByteLevelDecoder();

// Turns runs of tokens such as "<0x0A>" into their bytes if these are UTF-8, else into U+FFFD for
// each token.
TokenDecoder ByteFallbackDecoder();

// Joins all pieces to one.
TokenDecoder FuseDecoder();

// Replaces `pattern`, which is not empty, in each piece.
TokenDecoder ReplaceDecoder(std::string pattern, std::string content);

// Removes the character `content` at the ends of each piece: up to `start` times at the beginning
// and up to `stop` times at the end.
TokenDecoder StripDecoder(std::string content, int start, int stop);

// Turns the character `replacement` into a space. If `prefixed`, it is removed from the first
// piece.
TokenDecoder MetaspaceDecoder(std::string replacement, bool prefixed);

// Joins words with spaces. All pieces of a word except the first begin with `prefix`. `cleanup`
// removes the space before punctuation and English contractions.
TokenDecoder WordPieceDecoder(std::string prefix, bool cleanup);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIPELINE_TOKEN_DECODER_H_
