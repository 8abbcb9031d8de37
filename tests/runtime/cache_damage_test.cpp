// Whatever bytes lie where an entry should, a load gives the stored payload or nothing.
#include <algorithm>
#include <map>

#include <sys/stat.h>

#include "tests/runtime/cache_fixture.h"

namespace tw {
namespace {

int random_below(size_t bound) { return int(random_source()() % bound); }

struct CacheDamage : Cache {
    std::string whole;

    void SetUp() override {
        ASSERT_TRUE(cache.store(key, payload));
        whole = contents(file());
    }

    // The bytes differ from those that were stored.
    void expect_miss(const std::string& bytes, const std::string& what) {
        ASSERT_NE(bytes, whole) << what;
        overwrite(file(), bytes);
        ASSERT_EQ(cache.load(key), std::nullopt) << what;
        ASSERT_FALSE(fs::exists(file())) << what;
    }
};

TEST_F(CacheDamage, SeveralFlippedBitsAreAMiss) {
    for (int i = 0; i < 2000; ++i) {
        std::string damaged = whole;
        for (int flips = 2 + random_below(30); flips > 0; --flips) {
            char& byte = damaged[size_t(random_below(damaged.size()))];
            byte = char(byte ^ (1 << random_below(8)));
        }
        if (damaged != whole) expect_miss(damaged, fmt::format("round {}", i));
    }
}

TEST_F(CacheDamage, LostAndRepeatedRangesAreAMiss) {
    for (int i = 0; i < 1000; ++i) {
        std::string damaged = whole;
        size_t begin = size_t(random_below(whole.size())), size = size_t(1 + random_below(whole.size() - begin));
        switch (i % 4) {
            case 0: damaged.erase(begin, size); break;
            case 1: damaged.insert(begin, whole.substr(begin, size)); break;
            case 2: damaged.replace(begin, size, std::string(size, '\0')); break;  // a block that was never written
            case 3: damaged.replace(begin, size, random_bytes(size)); break;
        }
        if (damaged != whole) expect_miss(damaged, fmt::format("way {}, {} bytes at {}", i % 4, size, begin));
    }
}

TEST_F(CacheDamage, GarbageIsAMiss) {
    for (int i = 0; i < 500; ++i) expect_miss(random_bytes(size_t(random_below(2000))), fmt::format("round {}", i));
    for (int i = 0; i < 500; ++i)  // behind a good header
        expect_miss(whole.substr(0, 32) + random_bytes(whole.size() - 32), fmt::format("round {}", i));
}

TEST_F(CacheDamage, AnEntryUnderAnotherNameIsAMiss) {
    std::map<std::string, std::string> payloads;
    std::vector<std::string> keys;
    for (int k = 0; k < 20; ++k) {
        keys.push_back("kernel " + std::to_string(k));
        payloads[keys.back()] = random_bytes(100);  // all of one size
        ASSERT_TRUE(cache.store(keys.back(), payloads[keys.back()]));
    }
    std::vector<std::string> files, shuffled;
    for (const std::string& each : keys) files.push_back(contents(file_of(each)));
    for (int i = 0; i < 20; ++i) {
        shuffled = files;
        std::shuffle(shuffled.begin(), shuffled.end(), random_source());
        for (size_t k = 0; k < keys.size(); ++k) overwrite(file_of(keys[k]), shuffled[k]);
        for (size_t k = 0; k < keys.size(); ++k) {
            auto found = cache.load(keys[k]);
            if (shuffled[k] == files[k])
                EXPECT_EQ(found, payloads[keys[k]]);
            else
                EXPECT_EQ(found, std::nullopt);
        }
    }
    for (const std::string& each : keys) EXPECT_TRUE(cache.store(each, payloads[each]));
    for (const std::string& each : keys) EXPECT_EQ(cache.load(each), payloads[each]);
}

TEST_F(CacheDamage, AFolderInAnEntrysPlaceIsAMissUntilItIsStored) {
    fs::remove(file());
    fs::create_directories(file() / "deep");
    EXPECT_EQ(cache.load(key), std::nullopt);
    EXPECT_TRUE(cache.store(key, payload));
    EXPECT_EQ(cache.load(key), payload);
    EXPECT_TRUE(cache.verify().empty());
    EXPECT_TRUE(cache.store("another", payload));
    EXPECT_EQ(cache.load("another"), payload);
}

}  // namespace
}  // namespace tw
