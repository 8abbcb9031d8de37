// Texts that are nearly right.
#pragma once
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <vector>

#ifndef TW_FUZZED_FILES
#define TW_FUZZED_FILES 200'000  // of each format; loaders_with_sanitizers_test has fewer
#endif

namespace tw {

inline constexpr int num_fuzzed_files = TW_FUZZED_FILES;

/// One to four changes: a bit, a byte, a part taken away, doubled or cut off, a token put in or in a digit's place.
inline std::string mutated(std::string text, const std::vector<std::string>& tokens, std::mt19937_64& random) {
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
        const size_t at = random() % (text.size() + 1), count = random() % 12;
        const std::string& token = tokens[random() % tokens.size()];
        switch (random() % 8) {
            case 0:
                if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
                break;
            case 1:
                if (at < text.size()) text[at] = static_cast<char>(random() % 256);
                break;
            case 2: text.erase(at, count); break;
            case 3: text.insert(at, text.substr(at, count)); break;
            case 4: text.resize(random() % 4 == 0 ? at : text.size()); break;
            case 5: text.insert(at, token); break;
            case 6: text.replace(at, std::min(count, text.size() - at), token); break;
            case 7:
                if (const size_t digit = text.find_first_of("0123456789", at); digit != std::string::npos)
                    text.replace(digit, 1, token);
                break;
        }
    }
    return text;
}

/// In memory of their own, of just as many bytes: sanitizers see who reads beyond.
inline std::vector<std::byte> own_bytes(const std::string& text) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

}  // namespace tw
