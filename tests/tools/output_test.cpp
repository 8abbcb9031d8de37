#include "tools/output.h"

#include <csignal>

#include <gmock/gmock.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"

namespace tw {
namespace {

TEST(Output, AFullDiskIsAnError) {
    std::FILE* full = std::fopen("/dev/full", "w");
    ASSERT_NE(full, nullptr);
    EXPECT_ERROR(write_whole(full, "lost"), "cannot write the output: No space left on device");
    std::fclose(full);
}

TEST(Output, AClosedPipeIsAnErrorOfItsOwn) {
    auto before = std::signal(SIGPIPE, SIG_IGN);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    std::FILE* file = fdopen(ends[1], "w");
    close(ends[0]);
    EXPECT_ERROR(write_whole(file, "unread"), "nobody reads the output any more");
    std::fclose(file);
    std::signal(SIGPIPE, before);
}

TEST(Output, JsonIsUtf8WhateverAFolderIsCalled) {
    nlohmann::json json{{"folder", "bad\xff"}, {"bytes", 3}};
    EXPECT_EQ(nlohmann::json::parse(json_text(json)), nlohmann::json::parse(json_line(json)));
    EXPECT_EQ(nlohmann::json::parse(json_line(json))["folder"], "bad\xef\xbf\xbd");
}

}  // namespace
}  // namespace tw
