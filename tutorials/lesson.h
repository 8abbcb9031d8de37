// What the tutorials share: a device, data, showing and running.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "include/tilewright/dsl.h"
#include "ops/executable.h"

namespace tw {

class Lesson {
public:
    /// Options: --device cuda|emulated, --cuda (print whole kernels, not only the body of the first).
    Lesson(int argc, char** argv, const std::string& title);

    const std::shared_ptr<Device>& device() const { return device_; }
    /// One value where the emulator runs, another where a GPU does.
    int64_t size(int64_t emulated, int64_t gpu) const;
    void say(const std::string& text) const;
    void show(const Tensor& tensor) const;      ///< formulas
    void show(const Schedule& schedule) const;  ///< loop nest
    void show_oracle(const Tensor& tensor);
    void show_error(const std::function<void()>& mistake);
    void show_explanation(const Schedule& schedule) const;
    /// What holds of the schedule: a check of the lesson that fails where `holds` is false.
    void expect(bool holds, const std::string& text);
    /// The different lines of the explanation, or of the kernels, that contain one of the words. A word that none has
    /// fails.
    void show_notes(const Schedule& schedule, const std::vector<std::string>& words);
    void show_lines(const Schedule& schedule, const std::vector<std::string>& words);
    /// Prints CUDA and resources, runs, checks against float64, prints time and rate; returns seconds.
    double run(const Schedule& schedule, double flops, const std::string& name = "kernel");
    /// Runs both; prints the gain of the second.
    void compare(const std::string& name_a, const Schedule& a, const std::string& name_b, const Schedule& b,
                 double flops);
    /// The exit status: 0 if every check passed.
    int finish() const;

private:
    void show_lines_of(const std::string& text, const std::vector<std::string>& words);

    std::shared_ptr<Device> device_;
    bool whole_text_ = false;
    bool failed_ = false;
};

}  // namespace tw
