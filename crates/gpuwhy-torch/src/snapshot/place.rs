// SPDX-License-Identifier: Apache-2.0
//! What a stack shows: the line that allocated, the op, and the category.
//!
//! Rules about function names are here; rules about whose file it is are in gpuwhy-stacks.

use super::hash::FastMap;
use super::model::Snapshot;
use super::report::Category;
use gpuwhy_stacks::{Owner, owner};

/// What all allocations with one stack share. Lines and ops are ids: equal text has equal ids.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    /// The innermost line of your code, else of a package, else of PyTorch. 0: none.
    pub(super) line: u32,
    /// Whether `line` is your own.
    pub(super) yours: bool,
    /// The op's id; 0: none.
    pub(super) op: u32,
    pub(super) part: Part,
}

/// File, line and function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SourceLine {
    pub(super) file: String,
    pub(super) line: u32,
    pub(super) function: String,
}

/// The part of a training step that a stack is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Part {
    Parameters,
    OptimizerInit,
    Optimizer,
    ZeroGrad,
    Forward,
    Backward,
    /// A backward node that stores a parameter's gradient.
    Accumulate,
    /// A forward recomputed in the backward, to save activations.
    Recompute,
    Communication,
    Input,
    /// Scratch memory of cuBLAS and cuDNN.
    Workspace,
    /// No frames at all.
    #[default]
    Unknown,
    /// Frames that do not show it.
    Other,
}

impl Part {
    /// Whether the stack belongs to the backward pass; `None` if it does not show that.
    pub(super) fn in_backward(self) -> Option<bool> {
        match self {
            Self::Backward | Self::Accumulate | Self::Recompute => Some(true),
            Self::Unknown | Self::Workspace => None,
            _ => Some(false),
        }
    }

    /// What the memory is for, judged by the stack alone.
    pub(super) fn category(self) -> Category {
        match self {
            Self::Parameters => Category::Parameters,
            Self::OptimizerInit => Category::OptimizerState,
            Self::Optimizer => Category::OptimizerTemporary,
            Self::Forward => Category::Activations,
            Self::Backward => Category::Backward,
            Self::Accumulate => Category::Gradients,
            Self::Recompute => Category::Recomputed,
            Self::Communication => Category::Communication,
            Self::Input => Category::Inputs,
            Self::Workspace => Category::Workspace,
            Self::ZeroGrad | Self::Unknown | Self::Other => Category::Other,
        }
    }
}

/// Every stack's place, by stack id, computed on first use.
pub(super) struct Places<'a> {
    snapshot: &'a Snapshot,
    known: Vec<Option<Place>>,
    lines: Once<SourceLine>,
    ops: Once<String>,
}

impl<'a> Places<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        let known = vec![None; snapshot.stack_count()];
        Self { snapshot, known, lines: Once::default(), ops: Once::default() }
    }

    /// The place of a stack; [`NOTHING`](super::rows::NOTHING) has none.
    #[inline]
    pub(super) fn get(&mut self, stack: u32) -> Place {
        match self.known.get(stack as usize) {
            Some(Some(place)) => *place,
            Some(None) => self.work_out(stack),
            None => Place::default(),
        }
    }

    fn work_out(&mut self, stack: u32) -> Place {
        let seen = look_at(self.snapshot, stack);
        let mut place = Place { part: seen.part, ..Place::default() };
        if let Some((owner, line)) = seen.best {
            place.yours = owner == Owner::You;
            place.line = self.lines.id(line);
        }
        if let Some(op) = seen.native.name.or(seen.python_op) {
            place.op = self.ops.id(op);
        }
        self.known[stack as usize] = Some(place);
        place
    }

    pub(super) fn line(&self, id: u32) -> Option<&SourceLine> {
        self.lines.get(id)
    }

    pub(super) fn op(&self, id: u32) -> Option<&str> {
        self.ops.get(id).map(String::as_str)
    }

    /// The id of an op that no stack names.
    pub(super) fn op_id(&mut self, op: &str) -> u32 {
        self.ops.id(op.to_owned())
    }
}

/// Stores each value once, with ids from 1.
struct Once<T> {
    ids: FastMap<T, u32>,
    things: Vec<T>,
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self { ids: FastMap::default(), things: Vec::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Once<T> {
    fn id(&mut self, thing: T) -> u32 {
        let next = self.things.len() as u32 + 1;
        *self.ids.entry(thing).or_insert_with_key(|thing| {
            self.things.push(thing.clone());
            next
        })
    }

    fn get(&self, id: u32) -> Option<&T> {
        self.things.get((id as usize).checked_sub(1)?)
    }
}

/// What a walk through a stack has found.
#[derive(Default)]
struct Seen {
    best: Option<(Owner, SourceLine)>,
    native: NativeOp,
    python_op: Option<String>,
    part: Part,
}

fn look_at(snapshot: &Snapshot, stack: u32) -> Seen {
    let mut seen = Seen { part: Part::Other, ..Seen::default() };
    for frame in snapshot.frames(stack) {
        let (file, name) = (snapshot.text(frame.file), snapshot.text(frame.name));
        let owner = owner(&file);
        if owner == Owner::Native {
            seen.native.see(&name, seen.best.is_some());
            seen.part = stronger(seen.part, native_part(&name));
            continue;
        }
        seen.part = stronger(seen.part, python_part(&file, &name));
        if seen.best.is_none() && file.ends_with("torch/nn/functional.py") {
            seen.python_op = Some(name.to_string());
        }
        if seen.best.as_ref().is_none_or(|(held, _)| owner < *held) {
            let line = SourceLine { file: file.into_owned(), line: frame.line, function: name.into_owned() };
            seen.best = Some((owner, line));
        }
    }
    seen
}

/// The more specific of two parts. The first in this order wins: a forward inside a checkpoint's
/// recomputation is recomputation, an optimizer's copy is the optimizer's.
fn stronger(a: Part, b: Part) -> Part {
    const ORDER: [Part; 13] = [
        Part::Workspace,
        Part::OptimizerInit,
        Part::ZeroGrad,
        Part::Optimizer,
        Part::Accumulate,
        Part::Recompute,
        Part::Backward,
        Part::Communication,
        Part::Parameters,
        Part::Input,
        Part::Forward,
        Part::Other,
        Part::Unknown,
    ];
    ORDER.into_iter().find(|part| *part == a || *part == b).unwrap_or(Part::Unknown)
}

fn python_part(file: &str, function: &str) -> Part {
    let within = |path: &str| file.contains(path);
    if within("torch/optim/") || within("/optimizers/") || within("bitsandbytes/optim/") || within("deepspeed/ops/adam")
    {
        return match function {
            "_init_group" | "init_state" | "_init_state" => Part::OptimizerInit,
            "zero_grad" => Part::ZeroGrad,
            _ => Part::Optimizer,
        };
    }
    if within("torch/utils/checkpoint.py") {
        let again = ["recompute_fn", "unpack_hook", "inner_unpack", "backward"].contains(&function);
        return if again { Part::Recompute } else { Part::Unknown };
    }
    if within("torch/autograd/") || within("torch/_tensor.py") {
        return if ["backward", "_engine_run_backward", "_make_grads"].contains(&function) {
            Part::Backward
        } else {
            Part::Unknown
        };
    }
    if within("torch/distributed/") {
        return Part::Communication;
    }
    if within("torch/utils/data/") {
        return Part::Input;
    }
    let loads = ["_apply", "load_state_dict", "_load_from_state_dict", "from_pretrained", "reset_parameters"];
    if loads.contains(&function) || within("torch/nn/init.py") || within("safetensors/") {
        return Part::Parameters;
    }
    let runs_module = within("torch/nn/modules/module.py") && function == "zero_grad";
    if runs_module {
        return Part::ZeroGrad;
    }
    let forward = function == "_call_impl" || function == "forward";
    if within("torch/nn/functional.py") || (forward && within("torch/nn/")) || within("/torchinductor_") {
        return Part::Forward;
    }
    Part::Unknown
}

fn native_part(name: &str) -> Part {
    if name.starts_with("torch::autograd::AccumulateGrad") {
        return Part::Accumulate;
    }
    if name.starts_with("torch::autograd::Engine::") || name.starts_with("torch::autograd::generated::") {
        return Part::Backward;
    }
    let workspace = ["setWorkspaceForHandle", "CUDABlasLtWorkspace", "getNewWorkspace"];
    if name.starts_with("at::cuda::") && workspace.iter().any(|function| name.contains(function)) {
        return Part::Workspace;
    }
    if name.starts_with("c10d::") { Part::Communication } else { Part::Unknown }
}

/// The op in C++ frames: the outermost one below Python, which is what the program called; in the backward the
/// node that ran.
#[derive(Default)]
struct NativeOp {
    name: Option<String>,
    is_node: bool,
}

impl NativeOp {
    fn see(&mut self, frame: &str, past_python: bool) {
        if past_python || self.is_node {
            return;
        }
        if let Some(op) = frame.strip_prefix("at::_ops::").and_then(|rest| rest.split("::").next()) {
            self.name = Some(format!("aten::{op}"));
        } else if let Some(node) = frame.strip_prefix("torch::autograd::generated::").and_then(|r| r.split("::").next())
            && frame.contains("::apply(")
        {
            self.name = Some(node.to_owned());
            self.is_node = true;
        } else if frame.starts_with("torch::autograd::AccumulateGrad") {
            self.name = Some("AccumulateGrad".into());
            self.is_node = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_come_from_the_outermost_call_below_python() {
        let mut op = NativeOp::default();
        for frame in [
            "at::_ops::empty_strided::redispatch(c10::DispatchKeySet)",
            "at::native::to(at::Tensor const&)",
            "at::_ops::linear::call(at::Tensor const&)",
        ] {
            op.see(frame, false);
        }
        op.see("at::_ops::unrelated::call()", true);
        assert_eq!(op.name.as_deref(), Some("aten::linear"));
        op.see("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>)", false);
        op.see("at::_ops::late::call()", false);
        assert_eq!(op.name.as_deref(), Some("MmBackward0"));
    }

    #[test]
    fn parts_by_file_and_function() {
        let torch = "/x/site-packages/torch";
        for (file, function, part) in [
            ("optim/adam.py", "_init_group", Part::OptimizerInit),
            ("optim/adam.py", "_multi_tensor_adam", Part::Optimizer),
            ("optim/optimizer.py", "zero_grad", Part::ZeroGrad),
            ("nn/modules/module.py", "zero_grad", Part::ZeroGrad),
            ("nn/modules/module.py", "_apply", Part::Parameters),
            ("nn/modules/linear.py", "forward", Part::Forward),
            ("autograd/__init__.py", "_make_grads", Part::Backward),
            ("utils/checkpoint.py", "recompute_fn", Part::Recompute),
            ("distributed/distributed_c10d.py", "all_reduce", Part::Communication),
        ] {
            assert_eq!(python_part(&format!("{torch}/{file}"), function), part, "{file} {function}");
        }
    }
}
