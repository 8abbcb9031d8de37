// Copies that a stream of the emulated device has been given, none of which runs before something has to wait for it.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>

namespace tw {

/// So what does not wait meets memory as it was before the copy. Not for several threads at once.
class LateCopies {
public:
    void submit(void* stream, std::function<void()> copy) { streams_[stream].copies.push_back(std::move(copy)); }

    /// How many the stream was given so far.
    uint64_t given(void* stream) {
        const Work& work = streams_[stream];
        return work.done + work.copies.size();
    }

    /// Those of a stream up to that number, in order.
    void run(void* stream, uint64_t until = UINT64_MAX) {
        Work& work = streams_[stream];
        for (; !work.copies.empty() && work.done < until; ++work.done) {
            work.copies.front()();
            work.copies.pop_front();
        }
    }
    void run_all() {
        for (auto& [stream, work] : streams_) run(stream);
    }

private:
    struct Work {
        std::deque<std::function<void()>> copies = {};
        uint64_t done = 0;
    };
    std::map<void*, Work> streams_;
};

}  // namespace tw
