// The cache under processes that are killed, that crowd it, and in surroundings that fail. Three things hold: a load
// gives the stored bytes or nothing, nothing gets stuck, and no temporary files pile up.
#include <atomic>
#include <random>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/runtime/cache_fixture.h"

namespace tw {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int NumKeys = 8;

std::string key_of(int k) { return fmt::format("kernel {}", k); }

// Equal keys have equal payloads, in every process. Up to 150 kB.
std::string payload_of(int k) {
    std::mt19937 random{unsigned(k)};
    std::string bytes(size_t(k * k * 3000), '\0');
    for (char& byte : bytes) byte = char(random());
    return bytes;
}

std::vector<std::string> all_payloads() {
    std::vector<std::string> payloads;
    for (int k = 0; k < NumKeys; ++k) payloads.push_back(payload_of(k));
    return payloads;
}

// What processes count together; it outlives those that are killed.
struct Tally {
    std::atomic<int> stores = 0, failed_stores = 0, hits = 0, misses = 0, wrong = 0;

    static Tally& shared() {
        void* memory = mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        return *new (memory) Tally;
    }
};

struct CacheHardening : Cache {
    const std::vector<std::string> payloads = all_payloads();
    Tally& tally = Tally::shared();
    ~CacheHardening() override { munmap(&tally, sizeof tally); }

    void load_and_check(CubinCache& own, int k) {
        auto found = own.load(key_of(k));
        ++(found ? tally.hits : tally.misses);
        if (found && *found != payloads[size_t(k)]) ++tally.wrong;
    }

    // Stores, loads, evicts and lists keys at random; through a new CubinCache now and then.
    void work(unsigned seed, int num_rounds, uint64_t limit_bytes) {
        std::mt19937 random(seed);
        for (int round = 0; round < num_rounds;) {
            CubinCache own(cache.directory(), limit_bytes);
            for (int i = 0; i < 30 && round < num_rounds; ++i, ++round) {
                int k = int(random() % NumKeys);
                unsigned what = random() % 100;
                if (what < 50)
                    ++(own.store(key_of(k), payloads[size_t(k)]) ? tally.stores : tally.failed_stores);
                else if (what < 90)
                    load_and_check(own, k);
                else if (what < 98)
                    own.evict();
                else if (!own.verify().empty())
                    ++tally.wrong;
            }
        }
    }

    int num_temporaries() const {
        int count = 0;
        for (const auto& entry : fs::directory_iterator(cache.directory()))
            count += entry.path().filename().string().starts_with("tmp-");
        return count;
    }

    void expect_whole() {
        EXPECT_EQ(tally.wrong, 0);
        EXPECT_THAT(cache.verify(), IsEmpty());
        for (int k = 0; k < NumKeys; ++k) load_and_check(cache, k);
        EXPECT_EQ(tally.wrong, 0);
        EXPECT_THAT(warnings.texts(), IsEmpty());
        EXPECT_TRUE(CubinCache(cache.directory()).store("the next process", payload));
        EXPECT_EQ(num_temporaries(), 0);
    }
};

TEST_F(CacheHardening, AProcessKilledAtAnyMomentLeavesNoDamage) {
    constexpr int Kills = 300;
    int num_left = 0;
    for (int k = 0; k < NumKeys; ++k) ASSERT_TRUE(cache.store(key_of(k), payloads[size_t(k)]));
    for (int i = 0; i < Kills; ++i) {
        unsigned seed = random_source()();
        pid_t child = start_child([&] { return work(seed, 1 << 30, 300'000), 0; });
        usleep(random_source()() % 12000);
        kill(child, SIGKILL);
        ASSERT_EQ(result_of(child), -SIGKILL);
        ASSERT_LE(num_temporaries(), 1) << "a new process cleans up before it writes";
        num_left += num_temporaries();
    }
    fmt::print("{} kills: {} mid-write, {} stores, {} hits, {} misses\n", Kills, num_left, tally.stores.load(),
               tally.hits.load(), tally.misses.load());
    EXPECT_GT(num_left, 0) << "no kill landed within a write";
    EXPECT_GT(tally.hits, 0);
    EXPECT_EQ(tally.failed_stores, 0);
    expect_whole();
}

TEST_F(CacheHardening, SixteenProcessesCrowdIt) {
    std::vector<pid_t> children;
    for (int p = 0; p < 16; ++p) {
        unsigned seed = random_source()();
        children.push_back(start_child([&] { return work(seed, 150, 300'000), int(warnings.texts().size()); }));
    }
    for (pid_t child : children) EXPECT_EQ(result_of(child), 0);
    EXPECT_GT(tally.hits, 0);
    EXPECT_GT(tally.misses, 0);
    EXPECT_EQ(tally.failed_stores, 0);
    expect_whole();
}

TEST_F(CacheHardening, SomeOfSixteenProcessesAreKilled) {
    std::vector<pid_t> killed, others;
    for (int p = 0; p < 16; ++p) {
        unsigned seed = random_source()();
        (p % 2 ? killed : others).push_back(start_child([&, p] {
            return work(seed, p % 2 ? 1 << 30 : 100, 300'000), int(warnings.texts().size());
        }));
    }
    for (pid_t child : killed) {
        usleep(random_source()() % 20000);
        kill(child, SIGKILL);
        EXPECT_EQ(result_of(child), -SIGKILL);
    }
    for (pid_t child : others) EXPECT_EQ(result_of(child), 0);
    EXPECT_EQ(tally.failed_stores, 0);
    expect_whole();
}

TEST_F(CacheHardening, ProcessesThatEvictAtOnceRemoveNoMoreThanOne) {
    std::string big(10000, 'x');
    for (int i = 0; i < 200; ++i) cache.store(fmt::format("{:3}", i), big);
    const uint64_t entry_bytes = cache.list()[0].bytes;
    std::atomic<int>& ready = tally.hits;
    std::vector<pid_t> children;
    for (int p = 0; p < 16; ++p)
        children.push_back(start_child([&] {
            CubinCache own(cache.directory(), 100 * entry_bytes);
            for (++ready; ready < 16;) std::this_thread::yield();
            return own.evict(), 0;
        }));
    for (pid_t child : children) EXPECT_EQ(result_of(child), 0);
    EXPECT_EQ(cache.list().size(), 100u);
}

TEST_F(CacheHardening, AFolderRemovedMeanwhileIsMadeAgain) {
    EXPECT_TRUE(cache.store(key, payload));
    fs::remove_all(cache.directory());
    EXPECT_EQ(cache.load(key), std::nullopt);
    EXPECT_TRUE(cache.store(key, payload));
    EXPECT_EQ(CubinCache(cache.directory()).load(key), payload);
    EXPECT_THAT(warnings.texts(), IsEmpty());
}

TEST_F(CacheHardening, AFolderRemovedAgainAndAgainIsOnlyMissed) {
    std::vector<pid_t> children;
    for (int p = 0; p < 4; ++p) {
        unsigned seed = random_source()();
        children.push_back(start_child([&] { return work(seed, 300, 300'000), 0; }));
    }
    for (int i = 0; i < 100; ++i) {
        std::error_code ignored;
        fs::remove_all(cache.directory(), ignored);
        usleep(1000);
    }
    for (pid_t child : children) EXPECT_EQ(result_of(child), 0);
    EXPECT_GT(tally.stores, 0);
    expect_whole();
}

TEST_F(CacheHardening, AFolderThatTakesNoFileIsMissed) {
    overwrite(scratch.path() / "file", "in the folder's place");
    for (const std::string& folder : {(scratch.path() / "file").string(), (scratch.path() / "file/below").string(),
                                      std::string("/proc/self"), std::string("/proc/none"), std::string("/dev/null")}) {
        EXPECT_EQ(in_child([&] {
                      CubinCache impossible(folder);
                      if (impossible.store(key, payload) || impossible.load(key)) return 1;
                      impossible.evict();
                      if (!impossible.list().empty() || !impossible.verify().empty()) return 2;
                      return warnings.texts().size() == 1 ? 0 : 3;
                  }),
                  0)
            << folder;
    }
    EXPECT_EQ(contents(scratch.path() / "file"), "in the folder's place");
}

TEST_F(CacheHardening, WritesThatFailAtAnyByteLeaveNothing) {
    ASSERT_TRUE(cache.store(key, payload));
    for (int i = 0; i < 50; ++i) {
        auto bytes = rlim_t(random_source()() % 20000);
        EXPECT_EQ(in_child([&] {
                      signal(SIGXFSZ, SIG_IGN);  // the limit then fails the write, as a full disk does
                      rlimit limit{bytes, bytes};
                      setrlimit(RLIMIT_FSIZE, &limit);
                      CubinCache own(cache.directory());
                      if (own.store(key, std::string(20000, 'x'))) return 1;
                      return own.load(key) == payload ? 0 : 2;  // the entry before is still there
                  }),
                  0)
            << bytes;
        ASSERT_EQ(num_temporaries(), 0);
    }
}

TEST_F(CacheHardening, AFullDiskIsRidOfWhatKilledWritersLeft) {
    cache.problem();
    overwrite(cache.directory() / "tmp-0123456789abcdef", std::string(5000, 'x'));
    EXPECT_EQ(in_child([&] {
                  signal(SIGXFSZ, SIG_IGN);
                  rlimit limit{100, 100};
                  setrlimit(RLIMIT_FSIZE, &limit);
                  return CubinCache(cache.directory()).store(key, payload) ? 1 : 0;
              }),
              0);
    EXPECT_EQ(num_temporaries(), 0);
}

TEST_F(CacheHardening, AnEntryThatCannotBeOpenedNowIsKept) {
    ASSERT_TRUE(cache.store(key, payload));
    EXPECT_EQ(in_child([&] {
                  int highest = dup(0);
                  rlimit limit{rlim_t(highest), rlim_t(highest)};  // no descriptor is left
                  setrlimit(RLIMIT_NOFILE, &limit);
                  if (cache.load(key) || cache.store("new", payload)) return 1;
                  cache.evict();
                  if (!cache.verify().empty()) return 2;
                  return warnings.texts().size() == 2 &&
                                 warnings.texts()[0].find("Too many open files") != std::string::npos
                             ? 0
                             : 3;
              }),
              0);
    EXPECT_EQ(cache.load(key), payload);
}

TEST_F(CacheHardening, AnEntryFromTheFutureIsEvictedFirst) {
    std::string big(10000, 'x');
    for (const char* name : {"old", "future", "new"}) cache.store(name, big);
    set_age(file_of("old"), 100);
    set_age(file_of("future"), -1000000);
    set_age(file_of("new"), -60);  // another machine's clock, a little ahead
    CubinCache(cache.directory(), 25000).evict();
    EXPECT_EQ(cache.load("future"), std::nullopt);
    EXPECT_EQ(cache.load("old"), big);
    EXPECT_EQ(cache.load("new"), big);
}

}  // namespace
}  // namespace tw
