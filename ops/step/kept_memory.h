// What a run of a step writes outside of its arena, kept to be put back.
#pragma once
#include <exception>
#include <utility>
#include <vector>

#include "ops/step/planned_step.h"
#include "support/error.h"

namespace tw {

/// Results and overwritten inputs as they were when this was made, on the host. Puts them back where what stands
/// behind it throws.
class KeptMemory {
public:
    /// Waits for the device, as put_back() does.
    explicit KeptMemory(const PlannedStep& step) {
        for (size_t v = 0; v < step.plan().values.size(); ++v) {
            const StepValue& value = step.plan().values[v];
            if (value.made < 0 || value.place == StepValue::Place::Arena || value.bytes == 0) continue;
            std::vector<char> bytes(static_cast<size_t>(value.bytes));
            step.memory_of(v).copy_to_host(bytes.data(), 0, value.bytes);
            kept_.emplace_back(step.memory_of(v), std::move(bytes));
        }
    }
    KeptMemory(const KeptMemory&) = delete;
    KeptMemory& operator=(const KeptMemory&) = delete;
    ~KeptMemory() {
        if (std::uncaught_exceptions() == exceptions_) return;
        try {
            put_back();
        } catch (const Error&) {  // of a device that is lost: what is thrown already says so
        }
    }

    void put_back() const {
        for (const auto& [buffer, bytes] : kept_)
            buffer.copy_from_host(bytes.data(), 0, static_cast<int64_t>(bytes.size()));
    }

private:
    std::vector<std::pair<Buffer, std::vector<char>>> kept_;
    int exceptions_ = std::uncaught_exceptions();
};

}  // namespace tw
