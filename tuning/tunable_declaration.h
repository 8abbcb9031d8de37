// Any declaration as something that can be tuned, by the choices that its rule asks for.
#pragma once
#include "schedules/candidates.h"
#include "schedules/catalog.h"
#include "tuning/tune.h"

namespace tw::tuning {

struct TunableDeclaration {
    Tunable tunable;  ///< its name is the key's, its tilings are picks (schedules/choices.h), "rule" first
    schedules::DeclarationKey key, bucket;  ///< what schedule_as_tuned looks for
};

/// Of `options.limit` candidates at most, which are looked for in a quarter of the seconds `within`, if these are more
/// than none, and in half as long the generated ones among them. `rule_name` is what schedule_as_tuned knows the rule
/// by. Throws what the rule throws.
TunableDeclaration tunable_declaration(const std::vector<Tensor>& outputs, const std::string& rule_name,
                                       const schedules::ScheduleRule& rule, const Target& target,
                                       const TuneOptions& options);

/// What a kernel of the catalog, or one of a user's, has scheduled by rule. Throws Error, naming the kernel, where that
/// is nothing. Nothing is generated where the kernel's function adds steps of its own to the rule's.
TunableDeclaration tunable_kernel(const schedules::CatalogEntry& entry, const Target& target,
                                  const TuneOptions& options);

/// As tune() measures it; where choices of several stages are faster than the rule's, each by itself, these together
/// are measured beside the fastest, too.
TuneResult tune_choices(const Tunable& tunable, const std::shared_ptr<Device>& device, const TuneOptions& options,
                        const ShowStep& show);

}  // namespace tw::tuning
