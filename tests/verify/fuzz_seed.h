// The seed of a run: $TW_FUZZ_SEED, else the commit that is being tested, so that each commit tries other cases and a
// failure can be repeated.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace tw::fuzz {

inline int64_t number_from_environment(const char* name, int64_t otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::strtoll(text, nullptr, 0) : otherwise;
}

inline uint64_t seed_of_commit() {
    char text[17] = {};
    FILE* git = popen("git rev-parse HEAD 2>/dev/null", "r");
    if (!git) return 1;
    size_t got = std::fread(text, 1, 16, git);
    return pclose(git) == 0 && got == 16 ? std::strtoull(text, nullptr, 16) : 1;
}

inline uint64_t fuzz_seed() {
    const char* text = std::getenv("TW_FUZZ_SEED");
    uint64_t seed = text && *text ? std::strtoull(text, nullptr, 0) : seed_of_commit();
    std::printf("TW_FUZZ_SEED=%llu repeats this run\n", static_cast<unsigned long long>(seed));
    return seed;
}

}  // namespace tw::fuzz
