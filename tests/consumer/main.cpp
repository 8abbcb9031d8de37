// What a user of the installed package can include and link.
#include <cstdio>

#include <tilewright/support/error.h>

int main() {
    try {
        user_error(std::source_location::current(), "{} is no multiple of {}", 100, 48);
    } catch (const tw::Error& error) {
        std::puts(error.what());
        return 0;
    }
    return 1;
}
