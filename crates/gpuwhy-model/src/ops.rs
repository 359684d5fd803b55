// SPDX-License-Identifier: Apache-2.0
//! The op table: one row for each traced function. It drives attaching, decoding, naming and the docs;
//! tracing another function is adding a row.
//!
//! A row names the exact symbol. The *op* is its short name: the symbol without suffixes such as `_v2` and `_ptsz`, and with
//! `Sync` for `Synchronize` (`cudaStreamSynchronize_ptsz` → `cudaStreamSync`). Filters take either.
//!
//! Left out on purpose: `cudaGetDevice`, `cudaGetLastError`, `cudaEventQuery` and similar functions. PyTorch calls them
//! hundreds of times a step, and each call would pay for a trap that shows nothing.

mod cuda;
mod kernel;
mod nccl;
mod torch;

pub use kernel::{KernelOp, kernel_op};
pub use torch::{TorchOp, torch_op};

use crate::decode::Decode;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Which library a function belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Library {
    /// The CUDA runtime, `libcudart.so*`: what programs and frameworks call.
    Runtime,
    /// The CUDA driver, `libcuda.so*`: what the runtime, cuBLAS, Triton and JAX call.
    Driver,
    /// NVIDIA's collectives, `libnccl.so*`.
    Nccl,
    /// PyTorch's core, `libc10.so`: where its allocator reports.
    Torch,
    /// No library: the Linux kernel.
    Kernel,
}

impl Library {
    /// The file name begins with this, up to `.so`.
    pub fn stem(self) -> &'static str {
        match self {
            Self::Runtime => "libcudart",
            Self::Driver => "libcuda",
            Self::Nccl => "libnccl",
            Self::Torch => "libc10",
            Self::Kernel => "vmlinux",
        }
    }

    /// `runtime`, `driver`, `nccl`, `torch` or `kernel`, as in the run file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Driver => "driver",
            Self::Nccl => "nccl",
            Self::Torch => "torch",
            Self::Kernel => "kernel",
        }
    }

    /// Which traced library a file is, judged by its name (`libcuda.so.580.159.04`).
    pub fn of_file(name: &str) -> Option<Self> {
        let (stem, rest) = name.split_once(".so")?;
        if !(rest.is_empty() || rest.starts_with('.')) {
            return None;
        }
        // Wheels rename vendored libraries: libcudart-d0da41ae.so.11.0.
        let stem = stem.split_once('-').map_or(stem, |(s, _)| s);
        [Self::Runtime, Self::Driver, Self::Nccl, Self::Torch].into_iter().find(|lib| lib.stem() == stem)
    }
}

/// What a function does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Allocates memory.
    Alloc,
    /// Frees memory.
    Free,
    /// Maps or unmaps existing memory: nothing is allocated or freed.
    Map,
    /// Starts GPU work.
    Launch,
    /// Copies memory.
    Copy,
    /// Fills memory.
    Fill,
    /// Waits for the GPU.
    Sync,
    /// Orders streams without waiting on the CPU.
    Order,
    /// Exchanges data between ranks, on the GPU.
    Collective,
    /// Creates or ends a communicator, or groups collectives.
    Communicator,
    /// Captures or instantiates a CUDA graph.
    Graph,
    /// Loads code for the GPU, or finds a function in it.
    Module,
    /// Memory of a tensor, as PyTorch's allocator reports it.
    Tensor,
    /// Chooses the device or context.
    Device,
    /// A thread off the CPU, or woken.
    Sched,
    /// A process started, changed or ended.
    Process,
    /// Host memory.
    HostMemory,
    /// Disk or network.
    Io,
}

impl Class {
    /// The name in the run file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::Map => "map",
            Self::Launch => "launch",
            Self::Copy => "copy",
            Self::Fill => "fill",
            Self::Sync => "sync",
            Self::Order => "order",
            Self::Collective => "collective",
            Self::Communicator => "communicator",
            Self::Graph => "graph",
            Self::Module => "module",
            Self::Tensor => "tensor",
            Self::Device => "device",
            Self::Sched => "sched",
            Self::Process => "process",
            Self::HostMemory => "host_memory",
            Self::Io => "io",
        }
    }
}

/// A function's position in [`table`]. Valid within one gpuwhy; the run file stores names beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u16);

impl OpId {
    /// The function's row. An id from a newer or foreign source that has no row gives `None`.
    pub fn get(self) -> Option<&'static Op> {
        table().get(usize::from(self.0))
    }

    /// Whether it is a library's function, not a kernel event.
    pub fn is_cuda(self) -> bool {
        self.0 < kernel_op(KernelOp::SchedSwitch).0
    }
}

/// One traced function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// Its position.
    pub id: OpId,
    /// Its library.
    pub library: Library,
    /// The exact symbol.
    pub function: String,
    /// The short name.
    pub name: String,
    /// What it does.
    pub class: Class,
    /// How its arguments are read.
    pub decode: Decode,
    /// Slot of the stream argument.
    stream: Option<u8>,
    /// For a driver launch: the runtime function that the program called if libcudart made the call.
    pub runtime_twin: Option<OpId>,
    /// Runtime launches are seen at the driver; they get their own probes only when every layer is requested.
    pub seen_at_driver: bool,
}

impl Op {
    /// The cookie from which the BPF program reads this function. `linked_in`: its library is statically linked into the
    /// program or another library.
    pub fn cookie(&self, linked_in: bool) -> u64 {
        let twin = self.runtime_twin.map(|t| t.0);
        self.decode.cookie(self.id.0, self.stream, twin, self.library == Library::Runtime) | u64::from(linked_in) << 43
    }

    /// Whether programs may call it so often that its probe is too expensive: gpuwhy must be able to pause it separately.
    pub fn may_be_hot(&self) -> bool {
        match self.class {
            Class::Launch | Class::Sync | Class::Order | Class::Tensor => true,
            Class::Copy | Class::Fill => {
                matches!(self.name.as_str(), "cudaMemcpy" | "cudaMemcpyAsync" | "cudaMemsetAsync" | "cuMemcpyAsync")
                    || self.library == Library::Driver && self.name.ends_with("Async") && !self.name.contains("2D")
            }
            // Runtimes that are built into libraries ask for it at every launch.
            Class::Module => self.name == "cuKernelGetFunction",
            _ => false,
        }
    }

    /// Whether it is called rarely and handled by the BPF program for such functions, which may do more work.
    pub fn is_rare(&self) -> bool {
        matches!(self.class, Class::Collective | Class::Communicator | Class::Graph | Class::Module)
    }

    /// Whether the function takes a stream.
    pub fn has_stream(&self) -> bool {
        self.stream.is_some() || self.decode == Decode::LaunchConfig
    }
}

/// One row of the tables, before variants are added.
struct Row {
    symbol: &'static str,
    decode: Decode,
    stream: Option<u8>,
    ptsz: bool,
}

/// A function without a stream.
const fn f(symbol: &'static str, decode: Decode) -> Row {
    Row { symbol, decode, stream: None, ptsz: false }
}

/// The short name of a symbol.
pub fn short_name(symbol: &str) -> String {
    if let Some(name) = torch::name(symbol) {
        return name.to_owned();
    }
    let mut name = symbol;
    loop {
        let stripped = ["_ptsz", "_ptds", "_v2", "_v3", "_v4"].iter().find_map(|end| name.strip_suffix(end));
        match stripped {
            Some(shorter) => name = shorter,
            None => break name.replace("Synchronize", "Sync"),
        }
    }
}

fn build() -> Vec<Op> {
    let mut ops = Vec::new();
    let libraries = [
        (Library::Runtime, cuda::RUNTIME),
        (Library::Driver, cuda::DRIVER),
        (Library::Nccl, nccl::ROWS),
        (Library::Torch, torch::ROWS),
        (Library::Kernel, kernel::ROWS),
    ];
    for (library, groups) in libraries {
        for (class, rows) in groups {
            for row in *rows {
                let variant = if row.stream.is_some() { "_ptsz" } else { "_ptds" };
                let suffixes: &[&str] = if row.ptsz { &["", variant] } else { &[""] };
                for suffix in suffixes {
                    let function = format!("{}{suffix}", row.symbol);
                    ops.push(Op {
                        id: OpId(ops.len() as u16),
                        library,
                        name: short_name(&function),
                        seen_at_driver: library == Library::Runtime && *class == Class::Launch,
                        function,
                        class: *class,
                        decode: row.decode,
                        stream: row.stream.filter(|slot| *slot > 0),
                        runtime_twin: None,
                    });
                }
            }
        }
    }
    for (driver, runtime) in cuda::TWINS {
        for suffix in ["", "_ptsz"] {
            let twin = ops.iter().find(|op| op.function == format!("{runtime}{suffix}")).map(|op| op.id);
            if let Some(op) = ops.iter_mut().find(|op| op.function == format!("{driver}{suffix}")) {
                op.runtime_twin = twin;
            }
        }
    }
    ops
}

/// Every traced function, in order of [`OpId`].
pub fn table() -> &'static [Op] {
    static TABLE: LazyLock<Vec<Op>> = LazyLock::new(build);
    &TABLE
}

/// The row of an exact symbol.
pub fn by_function(symbol: &str) -> Option<&'static Op> {
    static INDEX: LazyLock<HashMap<&'static str, OpId>> =
        LazyLock::new(|| table().iter().map(|op| (op.function.as_str(), op.id)).collect());
    INDEX.get(symbol).and_then(|id| id.get())
}

/// The op table as the Markdown table in docs/run-file.md.
pub fn markdown() -> String {
    let mut out = String::from("| op | class | functions | arg0 | arg1 |\n|---|---|---|---|---|\n");
    let mut seen: Vec<&str> = Vec::new();
    for op in table() {
        if seen.contains(&op.name.as_str()) {
            continue;
        }
        seen.push(&op.name);
        let functions: Vec<String> =
            table().iter().filter(|o| o.name == op.name).map(|o| format!("`{}`", o.function)).collect();
        let (arg0, arg1) = op.decode.meaning();
        out += &format!("| `{}` | {} | {} | {arg0} | {arg1} |\n", op.name, op.class.name(), functions.join(" "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn symbols_are_unique_and_ids_are_positions() {
        let mut seen = HashSet::new();
        for (i, op) in table().iter().enumerate() {
            assert_eq!(usize::from(op.id.0), i);
            assert!(seen.insert(&op.function), "{} stands twice", op.function);
            assert!(i < 512, "the kernel counts loss for 512 ops, and the cookie holds ten bits of op");
        }
    }

    #[test]
    fn functions_that_share_an_op_mean_the_same_by_their_arguments() {
        for a in table() {
            for b in table().iter().filter(|b| b.name == a.name) {
                assert_eq!(a.decode.meaning(), b.decode.meaning(), "{} and {}", a.function, b.function);
                assert_eq!(a.class, b.class);
            }
        }
    }

    #[test]
    fn short_names_drop_suffixes() {
        for (symbol, name) in [
            ("cudaStreamSynchronize_ptsz", "cudaStreamSync"),
            ("cudaDeviceSynchronize", "cudaDeviceSync"),
            ("cuMemAlloc_v2", "cuMemAlloc"),
            ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
            ("cudaMalloc", "cudaMalloc"),
        ] {
            assert_eq!(short_name(symbol), name);
        }
    }

    #[test]
    fn every_driver_launch_knows_its_runtime_twin() {
        for op in table().iter().filter(|op| op.class == Class::Launch) {
            match op.library {
                Library::Driver => assert!(op.runtime_twin.and_then(OpId::get).unwrap().seen_at_driver),
                Library::Runtime => assert!(op.seen_at_driver),
                Library::Nccl | Library::Torch | Library::Kernel => panic!("{} launches nothing", op.library.name()),
            }
        }
    }

    #[test]
    fn libraries_are_known_by_file_name() {
        for (file, lib) in [
            ("libcudart.so.13", Some(Library::Runtime)),
            ("libcudart.so", Some(Library::Runtime)),
            ("libcudart-d0da41ae.so.11.0", Some(Library::Runtime)),
            ("libcuda.so.580.159.04", Some(Library::Driver)),
            ("libcuda.so.1", Some(Library::Driver)),
            ("libnccl.so.2", Some(Library::Nccl)),
            ("libc10.so", Some(Library::Torch)),
            ("libc10_cuda.so", None),
            ("libcudadebugger.so.1", None),
            ("libcudnn.so.9", None),
            ("libcuda.sorry", None),
        ] {
            assert_eq!(Library::of_file(file), lib, "{file}");
        }
    }

    /// The document's table is this table: set UPDATE_DOCS=1 to write it anew.
    #[test]
    fn the_run_file_document_lists_every_op() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/run-file.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (begin, end) = ("<!-- ops:begin -->\n", "<!-- ops:end -->");
        let (head, rest) = text.split_once(begin).unwrap();
        let (table, tail) = rest.split_once(end).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, format!("{head}{begin}{}{end}{tail}", markdown())).unwrap();
            return;
        }
        assert_eq!(table, markdown(), "docs/run-file.md is behind the op table: run with UPDATE_DOCS=1");
    }
}
