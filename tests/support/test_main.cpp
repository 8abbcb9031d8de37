#include <filesystem>

#include <gmock/gmock.h>

#include "tests/support/expect_error.h"

int main(int argc, char** argv) {
    testing::InitGoogleMock(&argc, argv);
    int result = RUN_ALL_TESTS();
    if (result == 0) tw::note_test_passed(std::filesystem::path(argv[0]).filename());
    return result;
}
