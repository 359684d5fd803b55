// SPDX-License-Identifier: Apache-2.0
//! The meaning of names, determined once per name instead of once per event.

/// Properties of a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Meaning(u16);

impl Meaning {
    /// `nn.Module: Linear_0`.
    pub(crate) const MODULE: Self = Self(1);
    /// A Python frame of the user's own code.
    pub(crate) const USER_LINE: Self = Self(1 << 1);
    /// Any Python frame with a file and line.
    pub(crate) const LINE: Self = Self(1 << 2);
    /// Fetching the next batch.
    pub(crate) const DATALOADER: Self = Self(1 << 3);
    /// A call that waits for the GPU.
    pub(crate) const SYNC: Self = Self(1 << 4);
    /// A call that takes memory from the driver or returns it.
    pub(crate) const ALLOCATOR: Self = Self(1 << 5);
    /// Loading or compiling code for the GPU.
    pub(crate) const LOADING: Self = Self(1 << 6);
    /// A call that starts work on the GPU.
    pub(crate) const LAUNCH: Self = Self(1 << 7);
    /// Autograd running one node of the backward.
    pub(crate) const BACKWARD: Self = Self(1 << 8);
    /// Activation checkpointing running a forward again.
    pub(crate) const RECOMPUTE: Self = Self(1 << 9);
    /// Autotuning: running kernels to choose one.
    pub(crate) const AUTOTUNE: Self = Self(1 << 10);
    /// A step of the profiler's schedule: says when, not what.
    pub(crate) const STEP: Self = Self(1 << 11);

    /// Whether it has all properties of `other`.
    #[inline]
    pub(crate) fn is(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn add(&mut self, other: Self, when: bool) {
        if when {
            self.0 |= other.0;
        }
    }

    /// What `name` means.
    pub(crate) fn of(name: &str) -> Self {
        let mut meaning = Self::default();
        let call = name.starts_with("cu") || name.starts_with("hip");
        if call {
            meaning.add(Self::SYNC, is_sync(name));
            meaning.add(Self::ALLOCATOR, is_allocation(name));
            meaning.add(Self::LOADING, is_loading(name));
            meaning.add(Self::LAUNCH, is_launch(name));
        }
        if let Some((file, _, _)) = python_line(name) {
            meaning.add(Self::LINE, true);
            meaning.add(Self::USER_LINE, !is_library(file));
            meaning.add(Self::DATALOADER, file.ends_with("torch/utils/data/dataloader.py"));
            meaning.add(Self::LOADING, compiles(file));
            meaning.add(
                Self::AUTOTUNE,
                file.contains("triton/runtime/autotuner.py") || file.contains("triton/testing.py"),
            );
            meaning.add(Self::RECOMPUTE, file.ends_with("torch/utils/checkpoint.py") && name.contains("recompute"));
        }
        meaning.add(Self::MODULE, name.starts_with("nn.Module: "));
        meaning.add(Self::DATALOADER, name.starts_with("enumerate(DataLoader)"));
        meaning.add(Self::BACKWARD, name.starts_with("autograd::engine::evaluate_function"));
        meaning.add(Self::RECOMPUTE, name.starts_with("CheckpointFunctionBackward"));
        meaning.add(Self::LOADING, name.contains("Module Loading") || name.contains("Function Loading"));
        meaning.add(Self::LOADING, name.starts_with("_compile.compile_inner") || name.contains("(dynamo_timed)"));
        meaning.add(Self::AUTOTUNE, name.contains("autotune") || name.contains("do_bench"));
        meaning.add(Self::STEP, name.starts_with("ProfilerStep"));
        meaning
    }
}

fn is_sync(name: &str) -> bool {
    name.contains("Synchronize") || matches!(name, "cudaMemcpy" | "hipMemcpy" | "hipMemcpyWithStream" | "cudaMemset")
}

fn is_allocation(name: &str) -> bool {
    const WORDS: [&str; 12] = [
        "cudaMalloc",
        "cudaFree",
        "cudaHostAlloc",
        "cudaHostRegister",
        "hipMalloc",
        "hipFree",
        "hipHostMalloc",
        "cuMem",
        "cudaMemGetInfo",
        "hipMemGetInfo",
        "cudaHostUnregister",
        "hipExtMalloc",
    ];
    let copies = name.contains("cuMemcpy") || name.contains("cuMemset");
    !copies && WORDS.iter().any(|word| name.starts_with(word))
}

fn is_loading(name: &str) -> bool {
    name.contains("ModuleLoad")
        || name.contains("LibraryLoad")
        || name.contains("cuModuleGet")
        || name.contains("GetFuncBySymbol")
        || name.contains("FuncSetAttribute")
        || name.contains("FuncGetAttributes")
}

fn is_launch(name: &str) -> bool {
    name.contains("Launch") || name.contains("MemcpyAsync") || name.contains("MemsetAsync")
}

/// Whether a compiler's frame compiles, rather than runs compiled code.
fn compiles(file: &str) -> bool {
    const WORDS: [&str; 6] = [
        "torch/_dynamo/convert_frame.py",
        "torch/_dynamo/symbolic_convert.py",
        "torch/_inductor/compile_fx.py",
        "torch/_inductor/codecache.py",
        "torch/_inductor/async_compile.py",
        "triton/compiler/",
    ];
    WORDS.iter().any(|word| file.contains(word))
}

/// File, line and function of a Python frame: `train.py(12): step`.
pub(crate) fn python_line(name: &str) -> Option<(&str, u32, &str)> {
    let (place, function) = name.split_once("): ")?;
    let (file, line) = place.rsplit_once('(')?;
    Some((file, line.parse().ok()?, function))
}

/// `train.py:12 step`, or the name as it is.
pub(crate) fn line_text(name: &str) -> String {
    match python_line(name) {
        Some((file, line, function)) => format!("{file}:{line} {function}"),
        // Built-in functions lost their address, and the bracket behind it, when they were read.
        None if name.starts_with('<') && !name.ends_with('>') => format!("{name}>"),
        None => name.to_owned(),
    }
}

/// Whether a file belongs to Python or an installed package. The profiler cuts off the path up to the package, so
/// installed ones begin with their name.
fn is_library(file: &str) -> bool {
    const INSTALLED: [&str; 17] = [
        "torch/",
        "torchvision/",
        "torchaudio/",
        "torchdata/",
        "transformers/",
        "accelerate/",
        "peft/",
        "trl/",
        "datasets/",
        "deepspeed/",
        "lightning/",
        "pytorch_lightning/",
        "numpy/",
        "triton/",
        "bitsandbytes/",
        "liger_kernel/",
        "einops/",
    ];
    const STANDARD: [&str; 11] = [
        "contextlib.py",
        "threading.py",
        "functools.py",
        "enum.py",
        "queue.py",
        "selectors.py",
        "abc.py",
        "copy.py",
        "random.py",
        "typing.py",
        "weakref.py",
    ];
    // The rule is gpuwhy-stacks'; what is added here knows the short paths that the profiler writes.
    gpuwhy_stacks::owner(file) != gpuwhy_stacks::Owner::You
        || INSTALLED.iter().any(|prefix| file.starts_with(prefix))
        || STANDARD.contains(&file)
        || file.starts_with("multiprocessing/")
        || file.starts_with("concurrent/")
        || file.starts_with("importlib/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart() {
        assert_eq!(python_line("train.py(12): step"), Some(("train.py", 12, "step")));
        assert_eq!(python_line("<built-in method relu of type object at 0x7f>"), None);
        assert!(Meaning::of("train.py(12): step").is(Meaning::USER_LINE));
        assert!(!Meaning::of("torch/nn/modules/module.py(1501): _call_impl").is(Meaning::USER_LINE));
        assert!(!Meaning::of("/usr/lib/python3.11/contextlib.py(81): inner").is(Meaning::USER_LINE));
        assert_eq!(line_text("a/b.py(3): f"), "a/b.py:3 f");
    }

    #[test]
    fn calls_are_told_apart() {
        for (name, meaning) in [
            ("cudaStreamSynchronize", Meaning::SYNC),
            ("hipDeviceSynchronize", Meaning::SYNC),
            ("cudaMalloc", Meaning::ALLOCATOR),
            ("cuMemCreate", Meaning::ALLOCATOR),
            ("cuModuleLoadData", Meaning::LOADING),
            ("cudaLaunchKernelExC", Meaning::LAUNCH),
            ("hipModuleLaunchKernel", Meaning::LAUNCH),
        ] {
            assert!(Meaning::of(name).is(meaning), "{name}");
        }
        assert!(!Meaning::of("cuMemcpyHtoDAsync_v2").is(Meaning::ALLOCATOR));
        assert!(!Meaning::of("cudaStreamIsCapturing").is(Meaning::SYNC));
    }
}
