//! The words of a step: a verb, then `key=value` and bare words in any order. What nobody asked for is an error, so that a
//! misspelt word cannot pass silently.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::str::FromStr;

/// Why a script cannot be read; says which word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadScript(pub String);

/// The words of one step that nobody has asked for yet.
pub(super) struct Words<'a> {
    left: Vec<&'a str>,
}

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { left: text.split_ascii_whitespace().collect() }
    }

    /// Takes the next word whatever it is: the verb.
    pub(super) fn verb(&mut self) -> Option<&'a str> {
        (!self.left.is_empty()).then(|| self.left.remove(0))
    }

    /// Takes all words that are left, as they stood.
    pub(super) fn rest(&mut self) -> String {
        core::mem::take(&mut self.left).join(" ")
    }

    /// Takes a bare word; whether it was there.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        self.take(|word| (word == name).then_some(())).is_some()
    }

    /// Takes the value of `key=value`.
    pub(super) fn value(&mut self, key: &str) -> Option<&'a str> {
        self.take(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// Takes a value that must be there.
    pub(super) fn needed(&mut self, key: &str) -> Result<&'a str, BadScript> {
        self.value(key).ok_or_else(|| BadScript(format!("{key}= is missing")))
    }

    /// Takes a number, decimal or 0x hexadecimal.
    pub(super) fn number<T: TryFrom<u64>>(&mut self, key: &str) -> Result<Option<T>, BadScript> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = number(value).and_then(|number| T::try_from(number).ok());
        number.map(Some).ok_or_else(|| BadScript(format!("{key}={value} is no number that fits")))
    }

    /// Takes a value with a set of names.
    pub(super) fn named<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, BadScript> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| BadScript(format!("{key}={value} is not known")))
    }

    /// Ends the step: no word may be left.
    pub(super) fn end(self) -> Result<(), BadScript> {
        match self.left.first() {
            None => Ok(()),
            Some(word) => Err(BadScript(format!("'{word}' is not known here"))),
        }
    }

    fn take<T>(&mut self, wanted: impl Fn(&'a str) -> Option<T>) -> Option<T> {
        let (at, found) = self.left.iter().enumerate().find_map(|(at, word)| Some((at, wanted(word)?)))?;
        self.left.remove(at);
        Some(found)
    }
}

/// A number, decimal or 0x hexadecimal.
pub(super) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
