//! Several logs in the order of time, with one item of each in memory.

use super::feed::{Feed, Item};
use crate::exit::{CliError, Exit};

/// Something that may know its time.
pub(super) trait Timed {
    /// Nanoseconds since the epoch.
    fn at(&self) -> Option<u64>;
}

/// One log.
pub(super) trait Log {
    type Item: Timed;

    /// The next item; `None` at the end.
    fn next(&mut self) -> Result<Option<Self::Item>, CliError>;
}

impl Log for Feed<'_> {
    type Item = Item;

    fn next(&mut self) -> Result<Option<Item>, CliError> {
        match Feed::next(self) {
            // One of many has no log, or none any more: the others are wanted all the same.
            Err(error) if error.exit == Exit::NotFound => Ok(None),
            other => other,
        }
    }
}

/// Where one log is.
enum Head<T> {
    Unread,
    Waits { at: u64, item: T },
    Ended,
}

/// The number of a log and what it has next; `None` once it has ended.
type Next<L> = (usize, Option<<L as Log>::Item>);

/// Logs being merged. An item without a time comes with the item before it in its own log.
pub(super) struct Merge<L: Log> {
    logs: Vec<L>,
    heads: Vec<Head<L::Item>>,
    /// The time that each log has reached.
    reached: Vec<u64>,
}

impl<L: Log> Merge<L> {
    pub(super) fn new(logs: Vec<L>) -> Self {
        let heads = logs.iter().map(|_| Head::Unread).collect();
        let reached = vec![0; logs.len()];
        Self {
            logs,
            heads,
            reached,
        }
    }

    /// The next item of one of the logs; `None` when all have ended.
    pub(super) fn next(&mut self) -> Result<Option<Next<L>>, CliError> {
        for number in 0..self.logs.len() {
            if !matches!(self.heads[number], Head::Unread) {
                continue;
            }
            let Some(item) = self.logs[number].next()? else {
                self.heads[number] = Head::Ended;
                return Ok(Some((number, None)));
            };
            // A clock that was set back does not turn a log around.
            let at = item.at().unwrap_or(0).max(self.reached[number]);
            self.reached[number] = at;
            self.heads[number] = Head::Waits { at, item };
        }
        let waiting = self.heads.iter().enumerate();
        let first = waiting
            .filter_map(|(number, head)| match head {
                Head::Waits { at, .. } => Some((*at, number)),
                Head::Unread | Head::Ended => None,
            })
            .min();
        Ok(first.and_then(|(_, number)| {
            match std::mem::replace(&mut self.heads[number], Head::Unread) {
                Head::Waits { item, .. } => Some((number, Some(item))),
                Head::Unread | Head::Ended => None,
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
    struct Word(Option<u64>, &'static str);

    impl Timed for Word {
        fn at(&self) -> Option<u64> {
            self.0
        }
    }

    impl Log for VecDeque<Word> {
        type Item = Word;

        fn next(&mut self) -> Result<Option<Word>, CliError> {
            Ok(self.pop_front())
        }
    }

    fn merged(logs: Vec<Vec<Word>>) -> String {
        let logs = logs.into_iter().map(VecDeque::from).collect();
        let mut merge = Merge::new(logs);
        let mut words = Vec::new();
        while let Some((number, item)) = merge.next().unwrap() {
            if let Some(Word(_, word)) = item {
                words.push(format!("{number}{word}"));
            }
        }
        words.join(" ")
    }

    #[test]
    fn the_oldest_comes_first() {
        let logs = vec![
            vec![Word(Some(1), "a"), Word(Some(5), "b")],
            vec![Word(Some(2), "c"), Word(Some(3), "d"), Word(Some(9), "e")],
            vec![],
        ];

        assert_eq!(merged(logs), "0a 1c 1d 0b 1e");
    }

    #[test]
    fn each_log_keeps_its_own_order() {
        let logs = vec![
            vec![Word(Some(7), "a"), Word(None, "b"), Word(Some(3), "c")],
            vec![Word(None, "d"), Word(Some(8), "e")],
        ];

        assert_eq!(merged(logs), "1d 0a 0b 0c 1e");
    }
}
