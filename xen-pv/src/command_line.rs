//! Words of the domain's command line (`cmdline=` in its config): `name` or `name=value`, separated by blanks.

/// The value of the last word `name=value`.
#[must_use]
pub fn value<'a>(command_line: &'a str, name: &str) -> Option<&'a str> {
    command_line
        .split_ascii_whitespace()
        .filter_map(|word| word.split_once('='))
        .rfind(|word| word.0 == name)
        .map(|word| word.1)
}

/// Whether the word `name` is there, without a value.
#[must_use]
pub fn has(command_line: &str, name: &str) -> bool {
    command_line.split_ascii_whitespace().any(|word| word == name)
}

/// The text up to the first NUL; empty if it is not UTF-8.
pub(crate) fn from_nul_terminated(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    core::str::from_utf8(&bytes[..end]).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_words_are_found() {
        let line = "  quiet log=info\tx= log=debug target=a=b ";
        for (name, expect) in [
            ("log", Some("debug")),
            ("x", Some("")),
            ("target", Some("a=b")),
            ("quiet", None),
            ("lo", None),
            ("", None),
        ] {
            assert_eq!(value(line, name), expect, "{name}");
        }
        assert_eq!(["quiet", "log", "x"].map(|word| has(line, word)), [true, false, false]);
    }

    #[test]
    fn text_ends_at_nul() {
        for (bytes, expect) in [(&b"ab\0cd"[..], "ab"), (b"ab", "ab"), (b"\0", ""), (b"", ""), (b"\xff\0", "")] {
            assert_eq!(from_nul_terminated(bytes), expect);
        }
    }
}
