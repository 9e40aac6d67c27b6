//! What was logged, by test: each runs in a thread of its own.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        LINES.with_borrow_mut(|lines| lines.push(format!("{}: {}", record.level(), record.args())));
    }
    fn flush(&self) {}
}

/// Begins to listen, for all that this test will log.
pub(super) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Logger).expect("no other logger");
        log::set_max_level(log::LevelFilter::Info);
    });
    LINES.take();
}

/// The lines with this in them, each begun by its level.
pub(super) fn lines_with(word: &str) -> Vec<String> {
    LINES.with_borrow(|lines| lines.iter().filter(|line| line.contains(word)).cloned().collect())
}
