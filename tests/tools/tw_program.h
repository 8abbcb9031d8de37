// The tw program as users run it.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <sys/wait.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
struct Outcome {
    int status = -1;
    std::string out, err;
    nlohmann::json json() const { return nlohmann::json::parse(out); }
};

std::string content(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// Each test has a folder of its own, which is also the kernel cache.
class Tw : public testing::Test {
protected:
    void SetUp() override {
        std::string name = (fs::temp_directory_path() / "tw-test-XXXXXX").string();
        ASSERT_NE(mkdtemp(name.data()), nullptr);
        folder_ = name;
    }
    void TearDown() override { fs::remove_all(folder_); }

    Outcome tw(const std::string& arguments, const std::string& variables = "") const {
        std::string command = fmt::format("TW_CACHE_DIR='{0}/cache' {1} '{2}' {3} > '{0}/out' 2> '{0}/err' < /dev/null",
                                          folder_.string(), variables, TW_PROGRAM, arguments);
        int status = std::system(command.c_str());
        return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(folder_ / "out"), content(folder_ / "err")};
    }

    bool has_nvrtc() const { return tw("doctor --json").json()["nvrtc"]["problem"].get<std::string>().empty(); }

    fs::path folder_;
};

#define NEEDS_NVRTC() \
    if (!has_nvrtc()) GTEST_SKIP() << "NVRTC is not on this machine"

}  // namespace
