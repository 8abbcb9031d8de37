#include "support/error.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;

class FileError : public Error {
public:
    using Error::Error;
};

inline void refuse_inline() { throw_error(FileError, "from an inline function"); }

template <class T>
void refuse_from_template(T value) {
    throw_error(FileError, "from a template with {}", value);
}

template <class Action>
std::string place_of(Action action) {
    try {
        action();
    } catch (const Error& error) {
        return error.site()->place;
    }
    return "nothing thrown";
}

TEST(Error, TellsTheUsersLineThenTheFacts) {
    auto where = std::source_location::current();
    auto expected = fmt::format("error_test.cpp:{}: split(k, 48): 48 does not divide axis 'k' (4096)", where.line());
    EXPECT_ERROR(user_check(4096 % 48 == 0, where, "split({}, {}): 48 does not divide axis 'k' ({})", "k", 48, 4096),
                 expected);
}

TEST(Error, IsSilentWhenTheConditionHolds) {
    EXPECT_NO_THROW(user_check(true, std::source_location::current(), "unseen"));
    EXPECT_NO_THROW(internal_check(true, "unseen"));
}

TEST(Error, ThrowErrorKeepsTheType) {
    EXPECT_THROW(throw_error(FileError, "cannot open {}", "a.cu"), FileError);
    EXPECT_ERROR(throw_error(FileError, "cannot open {}", "a.cu"), "cannot open a.cu");
}

TEST(Error, FormatsBracesInAMessageWithoutArguments) {
    EXPECT_ERROR(throw_error(FileError, "write {{}} for an empty list"), "write {} for an empty list");
}

TEST(Error, ABrokenInvariantNamesItsCondition) {
    int rank = 3;
    try {
        internal_check(rank == 2, "rank is {}", rank);
        FAIL() << "nothing thrown";
    } catch (const InternalError& error) {
        EXPECT_THAT(error.what(), HasSubstr("tests/support/error_test.cpp:"));
        EXPECT_THAT(error.what(), HasSubstr("internal check failed: rank == 2: rank is 3"));
    }
}

TEST(CheckSites, AreKnownInFunctionsLambdasAndTemplates) {
    for (const std::string& place : {
             place_of([] { throw_error(FileError, "from a lambda"); }),
             place_of([] { refuse_inline(); }),
             place_of([] { refuse_from_template(7); }),
         }) {
        EXPECT_THAT(place, testing::StartsWith("tests/support/error_test.cpp:"));
        EXPECT_THAT(check_sites(), testing::Contains(place));
    }
}

TEST(CheckSites, AreSortedAndThereOnce) {
    auto sites = check_sites();
    EXPECT_TRUE(std::is_sorted(sites.begin(), sites.end()));
    EXPECT_EQ(std::adjacent_find(sites.begin(), sites.end()), sites.end());
}

TEST(ExpectError, RefusesAnotherMessageAnotherTypeAndNone) {
    auto refuse = [] { throw_error(FileError, "cannot open a.cu"); };
    EXPECT_TRUE(throws_error(refuse, "open"));
    EXPECT_THAT(throws_error(refuse, "close").message(), HasSubstr("message: cannot open a.cu"));
    EXPECT_THAT(throws_error([] { throw std::runtime_error("other"); }, "other").message(),
                HasSubstr("not a tw::Error"));
    EXPECT_THAT(throws_error([] {}, "open").message(), HasSubstr("nothing was thrown"));
}

}  // namespace
}  // namespace tw
