// SPDX-License-Identifier: Apache-2.0
//! Features of this kernel, read from its BTF: tracepoints and the layout of their arguments.

use crate::programs::Flavour;
use libbpf_rs::btf::{Btf, BtfKind, BtfType, types};
use std::collections::HashSet;

/// The features of the kernel.
#[derive(Debug, Default)]
pub(crate) struct Features {
    tracepoints: HashSet<String>,
    /// How `sched_switch` passes the state of the thread that leaves; see `switch_shape` in bpf/watched.h.
    pub(crate) switch_shape: u32,
    /// Whether `mark_victim` passes the task (6.8) or its number.
    pub(crate) oom_victim_is_task: bool,
    /// The ways in which programs can be attached, by the kernel's own names.
    attach_types: HashSet<String>,
}

impl Features {
    /// Reads the running kernel's BTF; without one there is nothing.
    pub(crate) fn read() -> Self {
        let Ok(btf) = Btf::from_vmlinux() else { return Self::default() };
        let mut features = Self::default();
        // The kernel declares each tracepoint's arguments in a typedef of this name.
        for typedef in btf.type_by_kind::<types::Typedef<'_>>() {
            let name = typedef.name().and_then(|name| name.to_str());
            let Some(tracepoint) = name.and_then(|name| name.strip_prefix("btf_trace_")) else { continue };
            match tracepoint {
                "sched_switch" => features.switch_shape = switch_shape(&argument_kinds(&btf, &typedef)),
                "mark_victim" => {
                    features.oom_victim_is_task = argument_kinds(&btf, &typedef).first() == Some(&BtfKind::Ptr)
                }
                _ => {}
            }
            features.tracepoints.insert(tracepoint.to_owned());
        }
        let is_attach_type = |list: &types::Enum<'_>| list.name().is_some_and(|name| name == "bpf_attach_type");
        if let Some(list) = btf.type_by_kind::<types::Enum<'_>>().find(is_attach_type) {
            let names = list.iter().filter_map(|member| member.name?.to_str());
            features.attach_types = names.map(str::to_owned).collect();
        }
        features
    }

    /// Whether probes of a flavour can be attached. Kernels before 6.6 load the programs and only fail to attach them.
    pub(crate) fn has_flavour(&self, flavour: Flavour) -> bool {
        match flavour {
            Flavour::Session => self.attach_types.contains("BPF_TRACE_UPROBE_SESSION"),
            Flavour::Multi => self.attach_types.contains("BPF_TRACE_UPROBE_MULTI"),
            Flavour::Plain => true,
        }
    }

    /// Whether there is a tracepoint of this name.
    pub(crate) fn has(&self, tracepoint: &str) -> bool {
        self.tracepoints.contains(tracepoint)
    }
}

/// The kinds of a tracepoint's arguments, without the first, which is the kernel's own.
fn argument_kinds(btf: &Btf<'_>, typedef: &types::Typedef<'_>) -> Vec<BtfKind> {
    let proto = typedef.next_type().and_then(|pointer| pointer.next_type());
    let Some(proto) = proto.and_then(|proto| types::FuncProto::try_from(proto).ok()) else { return Vec::new() };
    proto
        .iter()
        .skip(1)
        .filter_map(|parameter| btf.type_by_id::<BtfType<'_>>(parameter.ty))
        .map(|ty| ty.skip_mods_and_typedefs().kind())
        .collect()
}

/// `(preempt, prev, next)`, `(preempt, state, prev, next)` of 5.18, or `(preempt, prev, next, state)`.
fn switch_shape(arguments: &[BtfKind]) -> u32 {
    match arguments {
        [_, _, _] => 0,
        [_, BtfKind::Ptr, BtfKind::Ptr, _] => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_arguments_is_told_by_their_kinds() {
        use BtfKind::{Int, Ptr};
        assert_eq!(switch_shape(&[Int, Ptr, Ptr]), 0);
        assert_eq!(switch_shape(&[Int, Int, Ptr, Ptr]), 1);
        assert_eq!(switch_shape(&[Int, Ptr, Ptr, Int]), 2);
    }

    #[test]
    fn this_kernel_has_a_scheduler() {
        let features = Features::read();
        assert!(features.has("sched_switch") && features.has("sched_process_exit") && !features.has("no_such_thing"));
    }

    #[test]
    fn each_way_of_attaching_came_with_its_kernel() {
        let (features, here) =
            (Features::read(), crate::system::kernel_version(&crate::system::kernel_release()).unwrap());
        for (flavour, since) in [(Flavour::Session, (6, 13)), (Flavour::Multi, (6, 6)), (Flavour::Plain, (5, 15))] {
            assert_eq!(features.has_flavour(flavour), here >= since, "{flavour:?} on {here:?}");
        }
    }
}
