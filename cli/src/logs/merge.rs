//! Several logs in the order of time, with one item of each in memory.

use super::feed::{Item, LogFeed};
use crate::exit::{CliError, Exit};

/// An item with an optional time.
pub(super) trait Timestamped {
    /// Nanoseconds since the epoch.
    fn at(&self) -> Option<u64>;
}

/// A log as a source of items.
pub(super) trait Log {
    type Item: Timestamped;

    /// The next item; `None` at the end.
    fn next(&mut self) -> Result<Option<Self::Item>, CliError>;
}

impl Log for LogFeed<'_> {
    type Item = Item;

    fn next(&mut self) -> Result<Option<Item>, CliError> {
        match LogFeed::next(self) {
            // A missing or deleted log must not stop the output of the others.
            Err(error) if error.exit == Exit::NotFound => Ok(None),
            other => other,
        }
    }
}

/// The state of a log during the merge.
enum LogHead<T> {
    Unread,
    Waits { at: u64, item: T },
    Ended,
}

/// The number of a log and its next item; `None` at its end.
type NextItem<L> = (usize, Option<<L as Log>::Item>);

/// Logs being merged. An item without a time follows the item before it in its own log.
pub(super) struct Merge<L: Log> {
    logs: Vec<L>,
    heads: Vec<LogHead<L::Item>>,
    /// The time that each log has reached.
    reached: Vec<u64>,
}

impl<L: Log> Merge<L> {
    pub(super) fn new(logs: Vec<L>) -> Self {
        let heads = logs.iter().map(|_| LogHead::Unread).collect();
        let reached = vec![0; logs.len()];
        Self {
            logs,
            heads,
            reached,
        }
    }

    /// The next item of one of the logs; `None` when all have ended.
    pub(super) fn next(&mut self) -> Result<Option<NextItem<L>>, CliError> {
        for number in 0..self.logs.len() {
            if !matches!(self.heads[number], LogHead::Unread) {
                continue;
            }
            let Some(item) = self.logs[number].next()? else {
                self.heads[number] = LogHead::Ended;
                return Ok(Some((number, None)));
            };
            // A clock that was set back does not turn a log around.
            let at = item.at().unwrap_or(0).max(self.reached[number]);
            self.reached[number] = at;
            self.heads[number] = LogHead::Waits { at, item };
        }
        let waiting = self.heads.iter().enumerate();
        let first = waiting
            .filter_map(|(number, head)| match head {
                LogHead::Waits { at, .. } => Some((*at, number)),
                LogHead::Unread | LogHead::Ended => None,
            })
            .min();
        Ok(first.and_then(|(_, number)| {
            match std::mem::replace(&mut self.heads[number], LogHead::Unread) {
                LogHead::Waits { item, .. } => Some((number, Some(item))),
                LogHead::Unread | LogHead::Ended => None,
            }
        }))
    }

    pub(super) fn into_feeds(self) -> Vec<L> {
        self.logs
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[derive(Debug, PartialEq)]
    struct TimedWord(Option<u64>, &'static str);

    impl Timestamped for TimedWord {
        fn at(&self) -> Option<u64> {
            self.0
        }
    }

    impl Log for VecDeque<TimedWord> {
        type Item = TimedWord;

        fn next(&mut self) -> Result<Option<TimedWord>, CliError> {
            Ok(self.pop_front())
        }
    }

    fn merged(logs: Vec<Vec<TimedWord>>) -> String {
        let logs = logs.into_iter().map(VecDeque::from).collect();
        let mut merge = Merge::new(logs);
        let mut words = Vec::new();
        while let Some((number, item)) = merge.next().unwrap() {
            if let Some(TimedWord(_, word)) = item {
                words.push(format!("{number}{word}"));
            }
        }
        words.join(" ")
    }

    #[test]
    fn the_oldest_comes_first() {
        let logs = vec![
            vec![TimedWord(Some(1), "a"), TimedWord(Some(5), "b")],
            vec![
                TimedWord(Some(2), "c"),
                TimedWord(Some(3), "d"),
                TimedWord(Some(9), "e"),
            ],
            vec![],
        ];

        assert_eq!(merged(logs), "0a 1c 1d 0b 1e");
    }

    #[test]
    fn each_log_keeps_its_own_order() {
        let logs = vec![
            vec![
                TimedWord(Some(7), "a"),
                TimedWord(None, "b"),
                TimedWord(Some(3), "c"),
            ],
            vec![TimedWord(None, "d"), TimedWord(Some(8), "e")],
        ];

        assert_eq!(merged(logs), "1d 0a 0b 0c 1e");
    }
}
