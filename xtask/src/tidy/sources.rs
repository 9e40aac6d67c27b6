//! Rules on the text of the sources: module docs, file sizes, and where `unsafe` may stand.

use std::process::Command;

use anyhow::Context;

use crate::host_command::output;
use crate::project::Project;

/// Lines that a file may have, without its tests.
const MOST_LINES: usize = 600;

/// Places that may say `unsafe`: a directory (with a slash at its end) or a file.
const UNSAFE_PLACES: &[&str] = &["xen-pv/"];

/// Crates which forbid `unsafe` as a whole.
const SAFE_CRATES: &[&str] = &["xen-proto", "blkback-core", "netback-core", "tests/guests/testfront"];

/// What is wrong in the tracked sources, and in those about to be.
pub(super) fn check(project: &Project) -> anyhow::Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(&project.root).args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"]);
    let mut faults = vec![];
    for name in output(&mut git)?.lines() {
        let path = project.root.join(name);
        if path.exists() {
            let source = std::fs::read_to_string(&path).with_context(|| name.to_owned())?;
            faults.extend(check_source(name, &source));
        }
    }
    for krate in SAFE_CRATES {
        let file = project.root.join(krate).join("src/lib.rs");
        if file.exists() && !forbids_unsafe(&std::fs::read_to_string(&file)?) {
            faults.push(format!("{krate} does not forbid unsafe code"));
        }
    }
    Ok(faults)
}

fn check_source(name: &str, source: &str) -> Vec<String> {
    let mut faults = vec![];
    let first = source.lines().find(|line| !line.is_empty() && !line.starts_with("#!["));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        faults.push(format!("{name}: no '//!' that says what the module is for"));
    }
    let lines = lines_without_tests(source);
    if !is_test(name) && lines > MOST_LINES {
        faults.push(format!("{name}: {lines} lines without tests, and the limit is {MOST_LINES}"));
    }
    if !is_allowed_unsafe(name) {
        let users = source.lines().take(lines).enumerate().filter(|(_, line)| says_unsafe(line));
        faults.extend(users.map(|(at, _)| format!("{name}:{}: unsafe outside of the places for it", at + 1)));
    }
    faults
}

fn forbids_unsafe(lib: &str) -> bool {
    lib.lines().any(|line| line.starts_with("#![forbid(") && line.contains("unsafe_code"))
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("tests.rs")
}

fn is_allowed_unsafe(name: &str) -> bool {
    UNSAFE_PLACES.iter().any(|place| if place.ends_with('/') { name.starts_with(place) } else { name == *place })
}

/// Lines before an inline test module.
fn lines_without_tests(source: &str) -> usize {
    let lines: Vec<_> = source.lines().collect();
    let tests = lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{'));
    tests.unwrap_or(lines.len())
}

/// Whether the code of a line (not a comment) uses the keyword.
fn says_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '"';
    code.match_indices("unsafe ").any(|(at, word)| {
        let after = &code[at + word.len()..];
        !code[..at].ends_with(is_part) && KEYWORD_FOLLOWERS.iter().any(|follower| after.starts_with(follower))
    })
}

/// What may follow the keyword in code; in a text other words do.
const KEYWORD_FOLLOWERS: [&str; 5] = ["{", "fn ", "impl", "extern ", "trait "];

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str, source: &str) -> usize {
        check_source(name, source).len()
    }

    #[test]
    fn a_module_says_what_it_is_for() {
        assert_eq!(count("a/src/b.rs", "//! B.\nfn b() {}\n"), 0);
        assert_eq!(count("a/src/main.rs", "#![no_std]\n\n//! B.\n"), 0);
        assert_eq!(count("a/src/b.rs", "fn b() {}\n"), 1);
        assert_eq!(count("a/src/b.rs", ""), 1);
    }

    #[test]
    fn long_files_are_faults_yet_tests_do_not_count() {
        let long = format!("//! B.\n{}", "fn b() {}\n".repeat(MOST_LINES));
        assert_eq!(count("a/src/b.rs", &long), 1);
        assert_eq!(count("a/src/b/tests.rs", &long), 0);
        assert_eq!(count("a/tests/b.rs", &long), 0);
        let tested = format!("//! B.\n#[cfg(test)]\nmod tests {{\n{}}}\n", "fn b() {}\n".repeat(MOST_LINES));
        assert_eq!(count("a/src/b.rs", &tested), 0);
    }

    #[test]
    fn unsafe_stands_in_its_places_only() {
        let source = "//! B.\nfn b() { unsafe { c() } }\n";
        assert_eq!(count("driverdom/src/b.rs", source), 1);
        assert_eq!(count("xen-pv/src/b.rs", source), 0);
        for (line, expect) in [
            ("unsafe impl Send for B {}", true),
            ("pub unsafe fn b() {", true),
            ("#[unsafe(no_mangle)]", false),
            ("// unsafe { }", false),
            ("#![forbid(unsafe_code)]", false),
            ("unsafe extern \"C\" {", true),
            ("Self::Unsafe => unsafe_thing(),", false),
        ] {
            assert_eq!(says_unsafe(line), expect, "{line}");
        }
    }

    #[test]
    fn forbidding_is_read_from_the_crates_root() {
        assert!(forbids_unsafe("//! A.\n#![forbid(unsafe_code)]\n"));
        assert!(forbids_unsafe("#![forbid(unsafe_code, missing_docs)]\n"));
        assert!(!forbids_unsafe("//! #![forbid(unsafe_code)]\n#![deny(unsafe_code)]\n"));
    }
}
