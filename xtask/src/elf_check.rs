//! `cargo xtask elf-check`: what must hold of a guest's ELF file, read with binutils.

use std::fs;
use std::process::Command;

use crate::build::{self, Guest};
use crate::host_command::output;
use crate::options::Answer;
use crate::project::Project;
use crate::setup;

/// Checks the guests' ELF files: no red zone, nothing undefined, no writable code, size
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}

/// A stripped guest is smaller than this, in bytes.
const SIZE_LIMIT: u64 = 400 * 1024;

/// Runs the subcommand.
pub(crate) fn run(project: &Project, _: &Arguments) -> anyhow::Result<Answer> {
    setup::ensure_installed()?;
    let mut answer = Answer::Held;
    for guest in build::build_all(project)? {
        let faults = check(&guest)?;
        for fault in &faults {
            println!("elf-check: {}: {fault}", guest.name);
            answer = Answer::DidNotHold;
        }
        if faults.is_empty() {
            let size = fs::metadata(&guest.stripped)?.len();
            println!("elf-check: {}: good ({size} bytes stripped)", guest.name);
        }
    }
    Ok(answer)
}

/// What is wrong with a guest, a line each.
pub(crate) fn check(guest: &Guest) -> anyhow::Result<Vec<String>> {
    let code = output(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(&guest.unstripped))?;
    let undefined = output(Command::new("nm").arg("--undefined-only").arg(&guest.unstripped))?;
    let segments = output(Command::new("readelf").arg("-lW").arg(&guest.stripped))?;
    let mut faults = red_zone_users(&code);
    faults.extend(undefined_symbols(&undefined));
    faults.extend(bad_segments(&segments));
    faults.extend(too_big(fs::metadata(&guest.stripped)?.len()));
    Ok(faults)
}

/// Functions which touch memory below the stack pointer, where Xen pushes its event frames. `code` is of `objdump -d`.
fn red_zone_users(code: &str) -> Vec<String> {
    let mut function = "?";
    let mut faults: Vec<String> = vec![];
    let mut instructions = 0;
    for line in code.lines() {
        if let Some(name) = line.strip_suffix(">:").and_then(|line| line.split_once('<')) {
            function = name.1;
        } else if line.starts_with(' ') {
            instructions += 1;
            if is_below_stack_pointer(line) {
                faults.push(format!("red zone used in {function}: {}", line.trim()));
            }
        }
    }
    if instructions == 0 {
        faults.push("objdump shows no instruction".to_owned());
    }
    faults
}

/// Whether an operand of the instruction is `-0x..(%rsp...)`.
fn is_below_stack_pointer(instruction: &str) -> bool {
    instruction.match_indices("(%rsp").any(|(at, _)| {
        let before = &instruction[..at];
        let digits = before.trim_end_matches(|letter: char| letter.is_ascii_hexdigit());
        digits.len() < before.len() && digits.ends_with("-0x")
    })
}

/// Symbols that nothing defines. `symbols` is of `nm --undefined-only`.
fn undefined_symbols(symbols: &str) -> Vec<String> {
    symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(|name| format!("undefined symbol {name}"))
        .collect()
}

/// Segments which break W^X or ask for a dynamic loader. `segments` is of `readelf -lW`.
fn bad_segments(segments: &str) -> Vec<String> {
    let mut loads = 0;
    let mut faults = vec![];
    for line in segments.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            // LOAD offset virtual physical file-size memory-size FLAGS... alignment; the flags 'R E' are two words.
            ["LOAD", _, _, _, _, _, flags @ .., _] => {
                loads += 1;
                let flags = flags.concat();
                if flags.contains('W') && flags.contains('E') {
                    faults.push(format!("segment both writable and executable: {}", line.trim()));
                }
            }
            [kind @ ("INTERP" | "DYNAMIC" | "TLS"), ..] => {
                faults.push(format!("segment {kind}, which a guest has no use for"));
            }
            _ => {}
        }
    }
    if loads == 0 {
        faults.push("readelf shows no loaded segment".to_owned());
    }
    faults
}

fn too_big(bytes: u64) -> Option<String> {
    (bytes >= SIZE_LIMIT).then(|| format!("{bytes} bytes stripped, and the limit is {SIZE_LIMIT}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn red_zone_users_are_found_by_function() {
        let code = "\n0000000000400000 <_start>:\n  400000:\tcld\n  400001:\tmov    %rax,0x8(%rsp)\n\n0000000000400010 <leaf>:\n  400010:\tmov    %rdi,-0x8(%rsp)\n  400015:\tret\n";
        assert_eq!(red_zone_users(code), ["red zone used in leaf: 400010:\tmov    %rdi,-0x8(%rsp)"]);
    }

    #[test]
    fn operands_below_the_stack_pointer() {
        for (instruction, expect) in [
            ("mov %rax,-0x8(%rsp)", true),
            ("movups -0x78(%rsp),%xmm0", true),
            ("mov -0x10(%rsp,%rcx,8),%rax", true),
            ("mov %rax,0x8(%rsp)", false),
            ("mov (%rsp),%rax", false),
            ("mov -0x8(%rbp),%rax", false),
            ("mov -0x8(%rax),%rbx  # not (%rsp", false),
            ("sub $0x80,%rsp", false),
        ] {
            assert_eq!(is_below_stack_pointer(instruction), expect, "{instruction}");
        }
    }

    #[test]
    fn code_that_is_not_there_is_no_proof() {
        assert_eq!(red_zone_users("file format elf64-x86-64\n").len(), 1);
        assert_eq!(bad_segments("There are no program headers in this file.\n").len(), 1);
    }

    #[test]
    fn undefined_symbols_are_named() {
        assert_eq!(
            undefined_symbols("                 U memcpy\n                 w __cxa\n"),
            ["undefined symbol memcpy", "undefined symbol __cxa"]
        );
        assert!(undefined_symbols("").is_empty());
    }

    #[test]
    fn segments() {
        let load = |flags: &str| {
            format!(
                "  LOAD           0x001000 0x0000000000400000 0x0000000000400000 0x055000 0x055000 {flags} 0x1000\n"
            )
        };
        for (segments, faults) in [
            (load("R E") + &load("R  ") + &load("RW "), 0),
            (load("RWE"), 1),
            (load("R E") + "  INTERP         0x0002a8 0x2a8 0x2a8 0x1c 0x1c R 0x1\n", 1),
            (load("R E") + "  DYNAMIC        0x0002a8 0x2a8 0x2a8 0x1c 0x1c RW 0x8\n", 1),
        ] {
            assert_eq!(bad_segments(&segments).len(), faults, "{segments}");
        }
    }

    #[test]
    fn the_size_has_a_limit() {
        assert!(too_big(SIZE_LIMIT - 1).is_none());
        assert!(too_big(SIZE_LIMIT).is_some());
    }
}
