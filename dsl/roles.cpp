// Roles: which warps of a kernel run which stages.
#include <algorithm>
#include <set>

#include <fmt/ranges.h>

#include "dsl/edit.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

constexpr int warps_of_warpgroup = 4, most_warps_of_copies = 4;
constexpr int fewest_registers = 24, most_registers = 256;

/// A step's roles, checked one by one and together.
class RoleMaker {
public:
    RoleMaker(const Edit& edit, const std::vector<Role>& roles) : edit_(edit), state_(edit.state), roles_(roles) {}

    /// First the one that computes.
    std::vector<RoleSpec> run() {
        require(!roles_.empty(),
                "there is none; list one that copies, as {{\"load\", warps(1), registers(40), {{...}}}}");
        require(state_.target.has_tma, "they need {}, the target is {}", first_target_with(&Target::has_tma),
                state_.target.arch);
        for (const Role& role : roles_) add(role);
        auto computing = [](const RoleSpec& spec) { return spec.warps % warps_of_warpgroup == 0 && spec.warps > 0; };
        std::vector<RoleSpec> ordered;
        for (const RoleSpec& spec : specs_)
            if (!copies_only(spec)) ordered.push_back(spec);
        require(ordered.size() == 1, "{} of them compute; one does, and the others copy", ordered.size());
        require(computing(ordered[0]), "'{}' computes on {} warps; roles that compute have whole warpgroups",
                ordered[0].name, ordered[0].warps);
        require(ordered[0].ping_pong >= 1 && ordered[0].warps / warps_of_warpgroup % ordered[0].ping_pong == 0,
                "'{}': ping_pong({}) with {} warps; each group has the same number of warpgroups", ordered[0].name,
                ordered[0].ping_pong, ordered[0].warps);
        for (const RoleSpec& spec : specs_)
            if (copies_only(spec)) ordered.push_back(spec);
        require(ordered.size() > 1, "only '{}' is there; give the copies that run beside it a role of their own",
                ordered[0].name);
        check_registers(ordered);
        return ordered;
    }

    int kernel() const { return kernel_; }

private:
    template <class... Arguments>
    void require(bool holds, fmt::format_string<Arguments...> message, Arguments&&... arguments) const {
        if (!holds) user_error(edit_.where, "roles: {}", fmt::format(message, std::forward<Arguments>(arguments)...));
    }

    void add(const Role& role) {
        bool is_name = !role.name.empty() && std::all_of(role.name.begin(), role.name.end(),
                                                         [](unsigned char c) { return std::isalnum(c) || c == '_'; });
        require(is_name && !std::isdigit(static_cast<unsigned char>(role.name[0])),
                "\"{}\" is no name of letters and digits", role.name);
        for (const RoleSpec& other : specs_) require(other.name != role.name, "two are called '{}'", role.name);
        RoleSpec spec{role.name, role.warps.count, role.registers.count, role.ping_pong.count, {}, edit_.step};
        for (const StageRef& ref : role.stages) {
            int stage = edit_.stage(ref, "roles");
            const std::string& name = state_.stages[stage].definition.name;
            require(!state_.stages[stage].inlined, "'{}' of '{}' is inlined", name, role.name);
            require(taken_.insert(stage).second, "'{}' is named twice", name);
            int kernel = state_.kernel_of(stage);
            if (kernel_ < 0) kernel_ = kernel;
            require(kernel == kernel_, "'{}' stands in the kernel '{}', other stages in '{}'", name,
                    state_.stages[kernel].definition.name, state_.stages[kernel_].definition.name);
            spec.stages.push_back(stage);
        }
        require(
            !spec.stages.empty(),
            "'{}' has no stages; list the copies that its warps make, as stage() returned them, or what they compute",
            role.name);
        if (copies_only(spec))
            require(spec.ping_pong == 1, "'{}' copies; only the role that computes plays ping-pong", spec.name);
        if (copies_only(spec))
            require(spec.warps >= 1 && spec.warps <= most_warps_of_copies,
                    "'{}' copies with {} warps; 1 to {} are possible", spec.name, spec.warps, most_warps_of_copies);
        specs_.push_back(std::move(spec));
    }

    bool copies_only(const RoleSpec& spec) const {
        return std::all_of(spec.stages.begin(), spec.stages.end(), [&](int stage) {
            const StageRecord& record = state_.stages[stage];
            return record.is_copy && !record.after && resolved_memory(state_, stage) == Memory::Shared;
        });
    }

    void check_registers(const std::vector<RoleSpec>& specs) const {
        int64_t used = 0, given = 0, all_threads = 0;
        std::string parts;
        for (const RoleSpec& spec : specs) {
            int threads = (spec.warps + warps_of_warpgroup - 1) / warps_of_warpgroup * warps_of_warpgroup *
                          state_.target.warp_size;
            given += spec.registers > 0;
            used += int64_t{spec.registers} * threads;
            all_threads += threads;
            parts += fmt::format("{}{} x {}", parts.empty() ? "" : " + ", threads, spec.registers);
            require(spec.registers == 0 || (spec.registers >= fewest_registers && spec.registers <= most_registers &&
                                            spec.registers % 8 == 0),
                    "'{}' has {} registers; they are a multiple of 8 from {} to {}", spec.name, spec.registers,
                    fewest_registers, most_registers);
        }
        require(given == 0 || state_.target.has_setmaxnreg,
                "registers are given, but only sm_90a and sm_100a move them, the target is {}; leave them out",
                state_.target.arch);
        require(given == 0 || given == static_cast<int64_t>(specs.size()),
                "some give registers; either all do or none");
        // A launch gives each thread the same number, in eights; roles pass on what that makes together.
        const int64_t each = std::min<int64_t>(state_.target.registers / all_threads / 8 * 8, most_registers);
        require(used <= each * all_threads,
                "{} = {} registers, but {} threads start with {} each, {} together, and would wait for the others for "
                "ever; give them fewer",
                parts, used, all_threads, each, each * all_threads);
    }

    const Edit& edit_;
    const State& state_;
    const std::vector<Role>& roles_;
    std::vector<RoleSpec> specs_;
    std::set<int> taken_;
    int kernel_ = -1;
};

std::string role_text(Edit& edit, const RoleSpec& spec) {
    std::string warps = spec.warps % warps_of_warpgroup
                            ? fmt::format("warps({})", spec.warps)
                            : fmt::format("warpgroups({})", spec.warps / warps_of_warpgroup);
    std::vector<std::string> stages;
    for (int stage : spec.stages) stages.push_back(edit.stage_as_cpp(stage));
    std::string turns = spec.ping_pong > 1 ? fmt::format(", ping_pong({})", spec.ping_pong) : "";
    return fmt::format("{{\"{}\", {}, registers({}), {{{}}}{}}}", spec.name, warps, spec.registers,
                       fmt::join(stages, ", "), turns);
}

}  // namespace

void Schedule::roles(const std::vector<Role>& roles, std::source_location where) {
    Edit edit(state_, where);
    RoleMaker maker(edit, roles);
    std::vector<RoleSpec> specs = maker.run();
    std::vector<std::string> texts, saved;
    for (const RoleSpec& spec : specs) {
        texts.push_back(role_text(edit, spec));
        saved.push_back(fmt::format("{} {} {} {} {} {}", spec.name, spec.warps, spec.registers, spec.ping_pong,
                                    spec.stages.size(), fmt::join(spec.stages, " ")));
    }
    edit.state.roles[maker.kernel()] = specs;
    edit.commit(fmt::format("s.roles({{{}}});", fmt::join(texts, ", ")),
                fmt::format("roles {}", fmt::join(saved, " ")));
}

void Schedule::exclusive(const std::vector<StageRef>& stages, std::source_location where) {
    Edit edit(state_, where);
    user_check(!stages.empty(), where, "exclusive: name the stages at which warpgroups take turns");
    ExclusiveSection section{{}, edit.step};
    std::vector<std::string> texts;
    int kernel = -1;
    for (const StageRef& ref : stages) {
        const int stage = edit.stage(ref, "exclusive");
        const std::string& name = edit.state.stages[stage].definition.name;
        user_check(std::ranges::find(section.stages, stage) == section.stages.end(), where,
                   "exclusive: '{}' is named twice", name);
        if (kernel < 0) kernel = edit.state.kernel_of(stage);
        user_check(edit.state.kernel_of(stage) == kernel, where,
                   "exclusive: '{}' stands in another kernel than '{}'; name stages of one", name,
                   edit.state.stages[section.stages.empty() ? stage : section.stages[0]].definition.name);
        section.stages.push_back(stage);
        texts.push_back(edit.stage_as_cpp(stage));
    }
    const std::string saved = fmt::format("exclusive {} {}", section.stages.size(), fmt::join(section.stages, " "));
    edit.state.exclusive.push_back(std::move(section));
    edit.commit(fmt::format("s.exclusive({{{}}});", fmt::join(texts, ", ")), saved);
}

}  // namespace tw
