// Runs numbered cases in child processes, so that a crash or a hang costs one case.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tw::fuzz {

/// What a worker tells its parent: a kind and a text, which may be long. Begin and Note say what is being done now:
/// they are quoted if the worker dies.
struct Message {
    enum class Kind : char { Begin = 'b', Note = 'n', Result = 'r' } kind;
    int64_t number = 0;  ///< of the case
    std::string text = {};
};
using Tell = std::function<void(const Message&)>;

struct WorkerOptions {
    int workers = 2;
    double time_limit_s = 120;
};

/// Calls work(cases, tell) in child processes, each with a batch of case numbers. After a crash or a hang, `died` gets
/// the case that had begun last and what was noted since; the others of the batch are then tried one by one.
void run_in_workers(const std::vector<std::vector<int64_t>>& batches, const WorkerOptions& options,
                    const std::function<void(const std::vector<int64_t>& cases, const Tell& tell)>& work,
                    const std::function<void(const Message&)>& result,
                    const std::function<void(int64_t number, const std::string& how, const std::string& notes)>& died);

}  // namespace tw::fuzz
