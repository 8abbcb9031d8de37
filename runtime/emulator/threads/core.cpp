#include "runtime/emulator/threads/core.h"

namespace tw::emulator {

Core* core = nullptr;

namespace {

unsigned num_threads(const Launch& launch) { return launch.threads * launch.cluster; }

unsigned char* shared_windows(const Launch& launch) {
    return FiberStacks::get(num_threads(launch) + 1).shared_windows();
}

}  // namespace

Core::Core(const Module& module, const Launch& launch, const Options& options, std::function<void()> body)
    : module(module),
      launch(launch),
      options(options),
      random(options.seed),
      counts(options.statistics ? std::optional<Tally>(num_threads(launch)) : std::nullopt),
      tally(counts ? &*counts : nullptr),
      memories(launch, shared_windows(launch), (num_threads(launch) + WarpThreads - 1) / WarpThreads + NumAgents),
      threads(module, launch, memories, std::move(body)),
      order(threads, tally),
      operations(threads, order, random),
      limits(options) {
    core = this;
}

Core::~Core() { core = nullptr; }

uint32_t Core::running_rank() const {
    const uint32_t id = running.thread;
    return threads.rank_of(id < FirstAgent ? id : operations.in_slot(id)->issuer);
}

void Core::perhaps_let_others_run() {
    if (random.next() % 4 == 0) threads.let_others_run();
}

}  // namespace tw::emulator
