#include "tests/runtime/support.h"

#include <cstdlib>
#include <filesystem>

#include "runtime/compile/cubin_cache.h"

namespace tw {
namespace {

// Before the first use of the process' own cache: tests leave the user's alone.
class OwnCacheFolder : public testing::Environment {
public:
    void SetUp() override { setenv("TW_CACHE_DIR", (folder_.path() / "cache").c_str(), 1); }

private:
    ScratchFolder folder_;
};
const auto* const environment = testing::AddGlobalTestEnvironment(new OwnCacheFolder);

}  // namespace

ScratchFolder::ScratchFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "tw-test-XXXXXX";
    path_ = mkdtemp(pattern.data());
}

ScratchFolder::~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

ScopedVariable::ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* now = std::getenv(name)) before_ = now;
    value ? setenv(name, value, 1) : unsetenv(name);
}

ScopedVariable::~ScopedVariable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

std::mt19937& random_source() {
    static std::mt19937 source = [] {
        const char* given = std::getenv("TW_SEED");
        unsigned seed = given ? unsigned(std::atol(given)) : std::random_device()();
        fmt::print(stderr, "random data: TW_SEED={}\n", seed);
        return std::mt19937(seed);
    }();
    return source;
}

std::string random_bytes(size_t count) {
    std::string bytes(count, '\0');
    for (char& byte : bytes) byte = char(random_source()());
    return bytes;
}

std::vector<float> random_floats(size_t count) {
    std::vector<float> values(count);
    std::uniform_real_distribution<float> distribution(-2, 2);
    for (float& value : values) value = distribution(random_source());
    return values;
}

Surroundings surroundings(std::map<std::string, std::string> variables, const std::string& root) {
    auto variable = [variables](const std::string& name) -> std::optional<std::string> {
        auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
    return {.variable = variable, .root = root};
}

namespace {

/// As built; where only the test programs are, scripts/carry.sh has put it in lib/ beside their folder.
std::string built_or_carried(const std::filesystem::path& built) {
    if (std::filesystem::exists(built)) return built;
    return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" / built.filename();
}

}  // namespace

std::string fake_cuda_path() { return built_or_carried(FAKE_CUDA); }
std::string fake_nvrtc_path() { return built_or_carried(FAKE_NVRTC); }

Driver fake_driver() {
    Library library = find_library(driver_spec(), surroundings({{"TW_CUDA_DRIVER", fake_cuda_path()}}));
    auto* exported = reinterpret_cast<FakeCuda* (*)()>(library.symbol("fake_cuda"));
    *exported() = {};
    return start_driver(library);
}

FakeCuda& fake() {
    static Library library = find_library(driver_spec(), surroundings({{"TW_CUDA_DRIVER", fake_cuda_path()}}));
    return *reinterpret_cast<FakeCuda* (*)()>(library.symbol("fake_cuda"))();
}

Nvrtc fake_nvrtc() { return start_nvrtc(find_library(nvrtc_spec(), surroundings({{"TW_NVRTC", fake_nvrtc_path()}}))); }

CaughtWarnings::CaughtWarnings()
    : before_(set_warning_sink([this](const std::string& text) { texts_.push_back(text); })) {}

CaughtWarnings::~CaughtWarnings() { set_warning_sink(before_); }

}  // namespace tw
