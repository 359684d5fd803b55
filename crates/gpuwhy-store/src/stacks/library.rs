// SPDX-License-Identifier: Apache-2.0
//! Which library was at work: the package of the innermost frame that is not Python's own.

use gpuwhy_stacks::{Frame, Owner, owner};

/// The user's own code, as a library.
const YOURS: &str = "your code";
/// Python's own library, where nothing else is on the stack.
const PYTHON: &str = "python";

/// The library at work in a stack, innermost frame first; `None` if no frame is known.
pub(super) fn library(frames: &[Frame]) -> Option<String> {
    let named = frames.iter().find_map(package);
    named.or_else(|| frames.iter().any(|frame| frame.owner() != Owner::Native).then(|| PYTHON.to_owned()))
}

/// The package a frame belongs to; `None` for Python's own library, generated code and what is not known.
fn package(frame: &Frame) -> Option<String> {
    match frame.owner() {
        Owner::You => return Some(YOURS.into()),
        Owner::Native => return None,
        Owner::Package | Owner::Torch => {}
    }
    let file = frame.file.as_str();
    for installed in ["site-packages/", "dist-packages/"] {
        if let Some((_, rest)) = file.rsplit_once(installed) {
            let first = rest.split('/').next().unwrap_or(rest);
            let first = first.strip_suffix(".py").unwrap_or(first);
            // `torch-2.1-py3.12.egg/torch/…`
            let egg = first.strip_suffix(".egg").and_then(|egg| egg.split('-').next());
            return Some(egg.unwrap_or(first).to_owned());
        }
    }
    if file.starts_with('<') {
        return None;
    }
    if frame.owner() == Owner::Torch {
        let torch = file.starts_with("torch/") || file.contains("/torchinductor_") || file.contains("/pytorch/torch/");
        return torch.then(|| "torch".to_owned());
    }
    Some(checked_out(file))
}

/// The package of a checkout, or a command that pip wrote: the first folder at which the rules of [`owner`] say that it
/// is one, or the one below it if that is a `src`.
fn checked_out(file: &str) -> String {
    let folders = file.match_indices('/').map(|(at, _)| &file[..at]);
    let mut packaged = folders.skip_while(|folder| owner(&format!("{folder}/x.py")) != Owner::Package);
    let last = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    match packaged.next().map(last) {
        Some(name) if name == "src" => packaged.next().map_or(name, last),
        Some(name) => name,
        None => last(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[&str]) -> Option<String> {
        let frame = |file: &&str| Frame { file: (*file).to_owned(), function: "f".into(), line: Some(1) };
        library(&files.iter().map(frame).collect::<Vec<_>>())
    }

    #[test]
    fn libraries_are_told_by_their_paths() {
        for (file, expected) in [
            ("/home/me/train.py", "your code"),
            ("/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", "torch"),
            ("/usr/lib/python3/dist-packages/numpy/core/x.py", "numpy"),
            ("/opt/lib/python3.12/site-packages/six.py", "six"),
            ("/opt/lib/python3.9/site-packages/apex-0.1-py3.9.egg/apex/amp.py", "apex"),
            ("/usr/lib/python3.12/threading.py", "python"),
            ("<frozen runpy>", "python"),
            ("/tmp/torchinductor_me/ab/cab.py", "torch"),
            ("/src/pytorch/torch/optim/adam.py", "torch"),
            ("/src/transformers/src/transformers/models/a.py", "transformers"),
            ("/src/pytorch-lightning/src/lightning/a.py", "lightning"),
            ("/src/vllm/vllm/a.py", "vllm"),
            ("/opt/venv/bin/torchrun", "torchrun"),
        ] {
            assert_eq!(of(&[file]).as_deref(), Some(expected), "{file}");
        }
    }

    #[test]
    fn what_python_does_is_done_for_its_caller() {
        let torch = "/x/site-packages/torch/utils/data/dataloader.py";
        assert_eq!(of(&["/usr/lib/python3.12/threading.py", torch, "/me/train.py"]).as_deref(), Some("torch"));
        assert_eq!(of(&["<eval_with_key>.7", "/me/train.py"]).as_deref(), Some("your code"));
        assert_eq!(of(&["?"]), None);
        assert_eq!(of(&[]), None);
    }
}
