// Crashes of kernels, and kernels that do not end, as findings.
#pragma once
#include <csignal>
#include <ctime>

namespace tw::emulator {

/// While it lives, SIGILL (which is how overflow shows), SIGSEGV, SIGBUS and SIGFPE of a running thread stop the
/// launch, and so does a thread that computes past the limit without any access.
class SignalGuard {
public:
    explicit SignalGuard(double seconds_limit);
    ~SignalGuard();
    SignalGuard(const SignalGuard&) = delete;

private:
    static constexpr int NumSignals = 5;
    struct sigaction old_actions_[NumSignals] {};
    stack_t old_stack_{};
    timer_t timer_{};
    bool has_timer_ = false;
};

}  // namespace tw::emulator
