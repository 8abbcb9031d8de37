// What the runtime's tests share: a scratch folder, random data, the fake libraries.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/compile/compile.h"
#include "runtime/compile/library.h"
#include "tests/runtime/fake_cuda.h"
#include "tests/support/expect_error.h"

namespace tw {

/// A new empty folder of mode 0700, removed with all in it at the end of the scope.
class ScratchFolder {
public:
    ScratchFolder();
    ~ScratchFolder();
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

/// Sets or (nullptr) removes a variable, and puts the old value back at the end of the scope.
class ScopedVariable {
public:
    ScopedVariable(const char* name, const char* value);
    ~ScopedVariable();

private:
    const char* name_;
    std::optional<std::string> before_;
};

/// Seeded by $TW_SEED, else anew for each run; prints the seed.
std::mt19937& random_source();
std::string random_bytes(size_t count);
std::vector<float> random_floats(size_t count);

/// Looked for in `variables` and under `root` only.
Surroundings surroundings(std::map<std::string, std::string> variables, const std::string& root = "/nonexistent");

/// Where the fake libraries are.
std::string fake_cuda_path();
std::string fake_nvrtc_path();

/// The fake driver, started afresh: nothing alive, no failure set.
Driver fake_driver();
FakeCuda& fake();
Nvrtc fake_nvrtc();

/// Text of all warnings since the scope began.
class CaughtWarnings {
public:
    CaughtWarnings();
    ~CaughtWarnings();
    const std::vector<std::string>& texts() const { return texts_; }

private:
    std::vector<std::string> texts_;
    std::function<void(const std::string&)> before_;
};

}  // namespace tw
