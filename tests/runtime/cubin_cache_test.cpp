#include "runtime/compile/cubin_cache.h"

#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "runtime/compile/cubin_format.h"
#include "runtime/compile/replace_file.h"
#include "tests/runtime/cache_fixture.h"

namespace tw {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(Cache, RoundTrip) {
    EXPECT_EQ(cache.load(key), std::nullopt);
    EXPECT_TRUE(cache.store(key, payload));
    EXPECT_EQ(cache.load(key), payload);
    EXPECT_EQ(cache.load(key + "x"), std::nullopt);
    EXPECT_EQ(CubinCache(cache.directory()).load(key), payload) << "another process would not find it";
    std::string other = random_bytes(10);
    EXPECT_TRUE(cache.store(key, other));
    EXPECT_EQ(cache.load(key), other);
    EXPECT_TRUE(cache.store("", ""));
    EXPECT_EQ(cache.load(""), "");
    EXPECT_THAT(warnings.texts(), IsEmpty());
}

TEST_F(Cache, IsPrivate) {
    cache.store(key, payload);
    struct stat status {};
    ASSERT_EQ(stat(cache.directory().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0700u);
    ASSERT_EQ(stat(file().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
}

TEST_F(Cache, LeavesNoTemporaryFiles) {
    for (int i = 0; i < 10; ++i) cache.store(key + std::to_string(i), payload);
    EXPECT_EQ(std::distance(fs::directory_iterator(cache.directory()), fs::directory_iterator()), 10);
}

TEST_F(Cache, TheWholeKeyIsCompared) {
    cache.store("another key", payload);
    fs::rename(cache.directory() / entry_file_name("another key"), file());  // as if both had one hash
    EXPECT_EQ(cache.load(key), std::nullopt);
    EXPECT_THAT(warnings.texts(), IsEmpty());
    EXPECT_TRUE(cache.store(key, payload));
    EXPECT_EQ(cache.load(key), payload);
}

TEST_F(Cache, TruncationAtEveryByteIsAMiss) {
    cache.store(key, payload);
    std::string whole = contents(file());
    for (size_t size = 0; size < whole.size(); ++size) {
        overwrite(file(), whole.substr(0, size));
        EXPECT_EQ(cache.load(key), std::nullopt) << "cut at " << size;
        EXPECT_FALSE(fs::exists(file())) << "cut at " << size;
    }
    overwrite(file(), whole + "x");
    EXPECT_EQ(cache.load(key), std::nullopt);
    EXPECT_THAT(warnings.texts(), testing::Each(HasSubstr("removed a damaged entry of the kernel cache: ")));
    EXPECT_THAT(warnings.texts(), testing::Contains(HasSubstr("0 bytes are too few for an entry")));
}

TEST_F(Cache, EveryFlippedByteIsAMiss) {
    cache.store(key, payload);
    std::string whole = contents(file());
    for (size_t at = 0; at < whole.size(); ++at) {
        std::string damaged = whole;
        damaged[at] = char(damaged[at] ^ (1 << (random_source()() % 8)));
        overwrite(file(), damaged);
        EXPECT_EQ(cache.load(key), std::nullopt) << "byte " << at;
        EXPECT_FALSE(fs::exists(file())) << "byte " << at;
    }
    EXPECT_THAT(warnings.texts(), testing::Contains(HasSubstr("its checksum is wrong")));
    EXPECT_THAT(warnings.texts(), testing::Contains(HasSubstr("it does not begin like an entry")));
}

TEST(CacheFormat, SizesThatWrapAreRefused) {
    std::string bytes = pack_entry("key", "payload");
    for (uint64_t size : {~uint64_t{0}, ~uint64_t{0} - 9, uint64_t{1} << 63}) {
        std::string damaged = bytes;
        uint64_t rest = 10 - size;  // their sum is right, modulo 2^64
        std::memcpy(damaged.data() + 16, &size, 8);
        std::memcpy(damaged.data() + 24, &rest, 8);
        EXPECT_THAT(unpack_entry(damaged).problem, HasSubstr("do not make its"));
    }
}

TEST_F(Cache, AWarningIsGivenOnce) {
    for (int i = 0; i < 3; ++i) {
        overwrite((cache.problem(), file()), "short");
        EXPECT_EQ(cache.load(key), std::nullopt);
    }
    EXPECT_EQ(warnings.texts().size(), 1u);
}

TEST_F(Cache, AnEntryThatIsALinkIsNotFollowed) {
    cache.store(key, payload);
    fs::path aside = scratch.path() / "aside";
    fs::rename(file(), aside);
    fs::create_symlink(aside, file());
    EXPECT_EQ(cache.load(key), std::nullopt);
    EXPECT_TRUE(fs::exists(aside));
    EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("cannot open it")));
    EXPECT_TRUE(cache.store(key, payload));
    EXPECT_EQ(cache.load(key), payload);
}

TEST_F(Cache, AnEntryThatIsAPipeDoesNotHang) {
    cache.problem();
    ASSERT_EQ(mkfifo(file().c_str(), 0600), 0);
    EXPECT_EQ(cache.load(key), std::nullopt);
    EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("not a plain file")));
}

TEST_F(Cache, AFolderThatIsALinkIsRefused) {
    fs::create_directory(scratch.path() / "elsewhere");
    fs::create_symlink(scratch.path() / "elsewhere", cache.directory());
    EXPECT_FALSE(cache.store(key, payload));
    EXPECT_THAT(cache.problem(), HasSubstr("cannot open it as a folder (a link is not followed)"));
    EXPECT_TRUE(fs::is_empty(scratch.path() / "elsewhere"));
}

TEST_F(Cache, AFolderThatOthersMayWriteToIsRefused) {
    fs::create_directory(cache.directory());
    fs::permissions(cache.directory(), fs::perms(0720));
    EXPECT_FALSE(cache.store(key, payload));
    EXPECT_EQ(cache.load(key), std::nullopt);
    EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("others may write to it (mode 720); chmod 700 it")));
}

TEST_F(Cache, AFolderOfAnotherOwnerIsRefused) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
    fs::create_directory(cache.directory());
    fs::permissions(cache.directory(), fs::perms(0700));
    ASSERT_EQ(chown(cache.directory().c_str(), 12345, 12345), 0);
    EXPECT_FALSE(cache.store(key, payload));
    EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("it belongs to user 12345, not to 0")));
}

TEST_F(Cache, AnEntryOfAnotherOwnerIsNotTaken) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
    cache.store(key, payload);
    ASSERT_EQ(chown(file().c_str(), 12345, 12345), 0);
    EXPECT_EQ(cache.load(key), std::nullopt);
    EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("it belongs to user 12345")));
}

TEST_F(Cache, AFolderThatCannotBeWrittenToIsAMiss) {
    cache.store(key, payload);
    fs::permissions(cache.directory(), fs::perms(0500));
    fs::permissions(scratch.path(), fs::perms(0755));
    if (geteuid() == 0) {
        ASSERT_EQ(chown(cache.directory().c_str(), 65534, 65534), 0);
        ASSERT_EQ(chown(file().c_str(), 65534, 65534), 0);
    }
    EXPECT_EQ(in_child([&] {  // as a user that permissions apply to
                  if (geteuid() == 0 && setuid(65534) != 0) return 9;
                  CubinCache theirs(cache.directory());
                  if (theirs.load(key) != payload) return 1;
                  if (theirs.store("new", payload)) return 2;
                  if (warnings.texts().size() != 1) return 3;
                  return warnings.texts()[0].find("cannot create a file: Permission denied") == std::string::npos ? 4
                                                                                                                  : 0;
              }),
              0);
}

TEST_F(Cache, AFullDiskIsAMiss) {
    cache.problem();
    EXPECT_EQ(in_child([&] {
                  signal(SIGXFSZ, SIG_IGN);  // the limit then fails the write, as a full disk does
                  rlimit limit{100, 100};
                  setrlimit(RLIMIT_FSIZE, &limit);
                  if (cache.store(key, payload)) return 1;
                  if (warnings.texts().size() != 1) return 2;
                  return warnings.texts()[0].find("write: File too large") == std::string::npos ? 3 : 0;
              }),
              0);
    EXPECT_TRUE(fs::is_empty(cache.directory())) << "half an entry stayed";
}

TEST_F(Cache, APathThroughAFileIsAMiss) {
    std::ofstream(scratch.path() / "file") << "";
    CubinCache impossible(scratch.path() / "file/cache");
    EXPECT_FALSE(impossible.store(key, payload));
    EXPECT_THAT(impossible.problem(), HasSubstr("Not a directory"));
    EXPECT_THAT(CubinCache("").problem(), HasSubstr("none of TW_CACHE_DIR, XDG_CACHE_HOME and HOME is set"));
}

TEST_F(Cache, ThreadsAndProcessesShareIt) {
    constexpr int Keys = 20, Processes = 4, Threads = 8, Rounds = 40;
    auto payload_of = [&](int k) { return std::string(size_t(2000 + 100 * k), char('a' + k)) + payload; };
    auto work = [&](unsigned seed) {
        std::mt19937 random(seed);
        CubinCache own(cache.directory());
        for (int i = 0; i < Rounds; ++i) {
            int k = int(random() % Keys);
            std::string name = key + std::to_string(k);
            if (random() % 2) {
                if (!own.store(name, payload_of(k))) return false;
            } else if (auto found = own.load(name); found && *found != payload_of(k)) {
                return false;
            }
        }
        return true;
    };
    std::vector<pid_t> children;
    unsigned seed = unsigned(random_source()());
    for (int p = 0; p < Processes; ++p) {
        children.push_back(fork());
        if (children.back() == 0) _exit(work(seed + unsigned(p)) && warnings.texts().empty() ? 0 : 1);
    }
    std::atomic<int> num_right = 0;
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < Threads; ++t) threads.emplace_back([&, t] { num_right += work(seed + 100 + unsigned(t)); });
    }
    for (pid_t child : children) {
        int status = -1;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
    }
    EXPECT_EQ(num_right, Threads);
    EXPECT_THAT(warnings.texts(), IsEmpty());
    EXPECT_THAT(cache.verify(), IsEmpty());
    EXPECT_GT(cache.list().size(), size_t(Keys / 2));
}

TEST_F(Cache, EvictionRemovesTheLeastRecentlyUsed) {
    std::string big(10000, 'x');
    CubinCache small(cache.directory(), 35000);
    for (int k = 0; k < 3; ++k) {
        cache.store(std::to_string(k), big);
        set_age(cache.directory() / entry_file_name(std::to_string(k)), 100 - k);
    }
    EXPECT_EQ(cache.load("0"), big);  // used now
    cache.store("3", big);
    small.evict();
    std::vector<std::string> keys;
    for (const CacheEntry& entry : cache.list()) keys.push_back(entry.key);
    EXPECT_THAT(keys, testing::UnorderedElementsAre("0", "2", "3"));
}

TEST_F(Cache, TheFirstStoreEvictsWhatOthersLeft) {
    std::string big(10000, 'x');
    for (int k = 0; k < 5; ++k) cache.store(std::to_string(k), big);
    CubinCache small(cache.directory(), 35000);
    small.store("new", big);
    EXPECT_EQ(small.list().size(), 3u);
}

TEST_F(Cache, EvictionRemovesWhatKilledWritersLeft) {
    cache.store(key, payload);
    fs::path left = cache.directory() / "tmp-0123456789abcdef", at_work = cache.directory() / "tmp-fedcba9876543210";
    for (const fs::path& file : {left, at_work}) overwrite(file, "half");
    for (const char* name : {"notes.txt", "tmp-notes.txt", "tmp-1"}) overwrite(cache.directory() / name, "not ours");
    File writer(open(at_work.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(flock(*writer, LOCK_EX), 0);
    set_age(at_work, 7200);
    for (int64_t age : {0, 7200, -7200}) {  // the last by a clock that is behind
        overwrite(left, "half");
        set_age(left, age);
        cache.evict();
        EXPECT_FALSE(fs::exists(left)) << "of age " << age;
    }
    EXPECT_TRUE(fs::exists(at_work));
    for (const char* name : {"notes.txt", "tmp-notes.txt", "tmp-1"})
        EXPECT_TRUE(fs::exists(cache.directory() / name)) << name;
    EXPECT_EQ(cache.load(key), payload);
    writer.close();
    cache.evict();
    EXPECT_FALSE(fs::exists(at_work));
}

TEST_F(Cache, ADirectoryInPlaceOfAnEntryGivesWay) {
    cache.store(key, payload);
    const fs::path entry = cache.directory() / entry_file_name(key);
    auto make_directory = [&] {
        fs::remove_all(entry);
        fs::create_directories(entry / "deeper");
        overwrite(entry / "deeper" / "file", "in the way");
    };
    make_directory();
    EXPECT_EQ(cache.load(key), std::nullopt);
    EXPECT_FALSE(fs::exists(entry));
    EXPECT_TRUE(cache.store(key, payload));
    EXPECT_EQ(cache.load(key), payload);
    make_directory();
    ASSERT_EQ(cache.verify().size(), 1u);
    EXPECT_FALSE(fs::exists(entry));
}

TEST_F(Cache, ListAndVerifyTellTheDamaged) {
    cache.store(key, payload);
    cache.store("two", payload);
    cache.store("three", payload);
    fs::path two = cache.directory() / entry_file_name("two"), three = cache.directory() / entry_file_name("three");
    overwrite(two, contents(two).substr(1));
    fs::path misnamed = cache.directory() / entry_file_name("four");
    fs::rename(three, misnamed);

    auto entries = cache.list();
    ASSERT_EQ(entries.size(), 3u);
    for (const CacheEntry& entry : entries) {
        if (entry.file_name == entry_file_name(key)) {
            EXPECT_EQ(entry.key, key);
            EXPECT_EQ(entry.problem, "");
            EXPECT_EQ(entry.bytes, 32 + key.size() + payload.size() + 16);
            EXPECT_NEAR(double(entry.used_at), double(time(nullptr)), 60);
        } else if (entry.file_name == two.filename()) {
            EXPECT_EQ(entry.problem, "it does not begin like an entry");
        } else {
            EXPECT_EQ(entry.problem, "its name is not its key's hash");
        }
    }
    EXPECT_TRUE(fs::exists(two)) << "list() removes nothing";
    EXPECT_EQ(cache.verify().size(), 2u);
    EXPECT_FALSE(fs::exists(two));
    EXPECT_FALSE(fs::exists(misnamed));
    EXPECT_THAT(cache.verify(), IsEmpty());
}

TEST(CacheFolder, FollowsTheVariables) {
    ScopedVariable own("TW_CACHE_DIR", "/own"), caches("XDG_CACHE_HOME", "/caches"), home("HOME", "/home/me");
    EXPECT_EQ(default_cache_directory(), "/own");
    ScopedVariable no_own("TW_CACHE_DIR", nullptr);
    EXPECT_EQ(default_cache_directory(), "/caches/tilewright");
    ScopedVariable relative("XDG_CACHE_HOME", "caches");  // to be ignored, says the XDG specification
    EXPECT_EQ(default_cache_directory(), "/home/me/.cache/tilewright");
    ScopedVariable homeless("HOME", nullptr);
    EXPECT_EQ(default_cache_directory(), "");
}

}  // namespace
}  // namespace tw
