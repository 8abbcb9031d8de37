// Programs: from a schedule to kernels that run. Joins the language, codegen and the runtime.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/cost/predict_time.h"
#include "codegen/lower.h"
#include "dsl/schedule.h"

namespace tw {

/// Sees a kernel after a pass, as text.
using SeePass = std::function<void(std::string_view pass, std::string_view kernel, const std::string& text)>;

/// How a kernel that was edited by hand is launched; what is left out is as it was.
struct EditedLaunch {
    std::optional<std::array<int64_t, 3>> grid = {};  ///< blocks
    std::optional<int> threads = {};
    std::optional<int64_t> shared_bytes = {};  ///< dynamic shared memory of a block
};

/// A schedule lowered to CUDA text: kernels in launch order and the workspaces between them.
class Program {
public:
    /// The kernels in launch order. Fewer than the schedule's nests where one computes nothing.
    /// They are printed when they are asked for first: who looks at predicted() alone needs none.
    const std::vector<codegen::KernelText>& kernels() const& { return lowered().kernels; }
    std::vector<codegen::KernelText> kernels() && { return lowered().kernels; }
    /// All kernels' text, in launch order.
    std::string cuda() const;
    /// All kernels behind one pass of codegen, say "pipeline", as the text of its intermediate form. Throws Error
    /// listing the passes if none has this name.
    std::string after(const std::string& pass) const;
    /// Defaults taken by the schedule and by codegen, in plain words.
    std::string notes() const;
    /// The notes, and a line for each kernel: how long it takes by the model of time, with the target's speeds where
    /// they were calibrated (schedules/calibrated_speeds.h), and what takes most of that. Of a text that was given, the
    /// model knows nothing.
    std::string explain() const;
    /// The same with another text of one kernel, which has its name, parameters and results: a printed kernel that was
    /// edited by hand, or one written anew. Nothing proves it: check what it computes (Runner::check). Throws Error if
    /// there is no such kernel, if the text declares none of this name, or numbers of blocks or threads are below 1.
    Program with_cuda(const std::string& kernel, const std::string& cuda, const EditedLaunch& launch = {},
                      TW_HERE) const;
    /// The loop nests that the kernels compute, with the buffers, sizes and scalars that a run needs.
    const Tree& tree() const& { return tree_; }
    Tree tree() && { return std::move(tree_); }
    /// What the schedule was made for.
    const Target& target() const& { return target_; }
    Target target() && { return std::move(target_); }
    /// How long the kernels take by the model of time, on a device of the target's kind that nobody has calibrated.
    const codegen::Prediction& predicted() const { return predicted_; }
    /// Whether a kernel uses named approximations (exp, tanh, ...): its results then differ from the interpreter's by
    /// ulps.
    bool approximate() const;
    /// Where each printed line of a kernel comes from: "[7] s.stage(...) (user.cpp:31)" or, if no step but a
    /// declaration asked for it, "of 'y' (user.cpp:12)"; empty if nowhere in particular.
    std::vector<std::string> line_notes(size_t kernel) const;

private:
    friend Program build(const Schedule& schedule, const SeePass& seen);
    struct Printed {
        std::once_flag once;
        codegen::Lowered lowered;
    };
    const codegen::Lowered& lowered() const;
    Tree tree_;
    Target target_;
    std::vector<Tensor> outputs_;
    std::shared_ptr<Printed> printed_ = std::make_shared<Printed>();  ///< copies share it
    codegen::Prediction predicted_;
    std::vector<Step> trace_;
    std::map<std::string, std::string> declared_;  ///< where each tensor was, by name
    std::string schedule_notes_;
    std::set<std::string> given_;  ///< kernels whose text with_cuda() took
};

/// Lowers the schedule; `seen`, if there is one, sees every kernel after each pass. Throws Error, citing the step, if a
/// limit of the target is exceeded.
Program build(const Schedule& schedule, const SeePass& seen = {});

}  // namespace tw
