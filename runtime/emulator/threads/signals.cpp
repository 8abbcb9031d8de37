#include "runtime/emulator/threads/signals.h"

#include <cmath>

#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <fmt/format.h>

#include "runtime/emulator/threads/core.h"
#include "runtime/emulator/threads/report.h"

namespace tw::emulator {
namespace {

constexpr size_t AlternateBytes = 64 * 1024;
constexpr int Timer = SIGURG;  // ignored by whoever does not expect it

constexpr int Signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, Timer};

uintptr_t program_counter(void* context) {
    return uintptr_t(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
}

std::string crash_text(int signal, const siginfo_t& info) {
    uintptr_t address = reinterpret_cast<uintptr_t>(info.si_addr);
    if (signal == SIGFPE) return "divides by zero, or the smallest integer by -1";
    if (address - running.stack < StackBytes)
        return fmt::format("needs more stack than the {} KiB that it has", StackBytes / 1024);
    return fmt::format("crashes ({}) at address {:#x}", strsignal(signal), address);
}

/// Leaves the fiber from within the handler. Nothing of ours is torn: in code of the kernel, or of a library that it
/// calls, we hold no lock and no half-made state.
void on_signal(int signal, siginfo_t* info, void* context) {
    uintptr_t pc = program_counter(context);
    bool in_kernel = core && core->threads.any_runs() && core->module.contains(pc);
    if (signal == Timer) {
        if (!in_kernel) return;  // the checks look at the clock themselves
        Incident incident = incident_of(Finding::Kind::StepLimit, site_at(reinterpret_cast<void*>(pc + 1)));
        incident.text = fmt::format("{} seconds did not end the launch", core->options.seconds_limit);
        report(incident);
    }
    if (!core || !core->threads.any_runs()) {
        ::signal(signal, SIG_DFL);  // ours: happens again, and ends the process
        return;
    }
    // As if it were the address behind a call, like all sites.
    Incident incident = incident_of(signal == SIGILL ? Finding::Kind::Overflow : Finding::Kind::Crash,
                                    in_kernel ? site_at(reinterpret_cast<void*>(pc + 1)) : 0);
    if (signal != SIGILL) incident.text = crash_text(signal, *info);
    report(incident);
}

}  // namespace

SignalGuard::SignalGuard(double seconds_limit) {
    static_assert(std::size(Signals) == NumSignals);
    thread_local unsigned char alternate[AlternateBytes];
    stack_t stack{};
    stack.ss_sp = alternate;
    stack.ss_size = sizeof alternate;
    sigaltstack(&stack, &old_stack_);
    struct sigaction action {};
    action.sa_sigaction = &on_signal;
    // The handler does not return, so that the signal must not stay blocked.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
    for (int i = 0; i < NumSignals; ++i) sigaction(Signals[i], &action, &old_actions_[i]);

    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = Timer;
    event._sigev_un._tid = pid_t(syscall(SYS_gettid));
    has_timer_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
    itimerspec times{};
    times.it_value.tv_sec = time_t(seconds_limit);
    times.it_value.tv_nsec = long((seconds_limit - std::floor(seconds_limit)) * 1e9) + 1;
    times.it_interval.tv_nsec = 20'000'000;  // until it meets the kernel in its own code
    if (has_timer_) timer_settime(timer_, 0, &times, nullptr);
}

SignalGuard::~SignalGuard() {
    if (has_timer_) timer_delete(timer_);
    for (int i = 0; i < NumSignals; ++i) sigaction(Signals[i], &old_actions_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
}

}  // namespace tw::emulator
