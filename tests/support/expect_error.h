// Tests of error messages. Each one also notes which check it has read, so that error_coverage can find the others.
#pragma once
#include <string>

#include <gtest/gtest.h>

#include "support/error.h"

namespace tw {

/// Notes, where $TW_READ_SITES_DIR is set, that a test has read the message of this check; ignores nullptr.
void note_site_read(const CheckSite* site);

/// Notes, where $TW_READ_SITES_DIR is set, that the whole test program of this name has passed.
void note_test_passed(const std::string& name);

/// Runs the action: it must throw an Error whose what() contains `text`.
template <class Action>
testing::AssertionResult throws_error(Action action, const std::string& text) {
    try {
        action();
    } catch (const Error& error) {
        if (std::string(error.what()).find(text) == std::string::npos)
            return testing::AssertionFailure() << "the message does not contain: " << text << "\n"
                                               << "                  message: " << error.what();
        note_site_read(error.site());
        return testing::AssertionSuccess();
    } catch (const std::exception& other) {
        return testing::AssertionFailure() << "not a tw::Error: " << other.what();
    }
    return testing::AssertionFailure() << "nothing was thrown; expected an Error that says: " << text;
}

}  // namespace tw

/// EXPECT_ERROR(s.split(k, 48), "48 does not divide axis 'k'"): the statement throws an Error that says so.
/// A statement with a comma outside of parentheses needs parentheses or braces of its own.
#define EXPECT_ERROR(statement, text) EXPECT_TRUE(::tw::throws_error([&] { statement; }, text))
