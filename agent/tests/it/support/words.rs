//! Messages of plugins, as they come into the agent's log.

use std::fmt::Debug;
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Where a plugin's lines are passed on.
const TARGET: &str = "muster_driver::plugin::output";

static LINES: Mutex<Vec<PluginLogLine>> = Mutex::new(Vec::new());

/// A line of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PluginLogLine {
    pub(crate) level: Option<Level>,
    pub(crate) driver: String,
    pub(crate) module: String,
    pub(crate) message: String,
    pub(crate) fields: String,
}

/// Keeps what plugins say from now on, in this whole process.
pub(crate) fn listen() {
    static LISTENS: Once = Once::new();
    LISTENS.call_once(|| tracing::subscriber::set_global_default(Listener).unwrap());
}

/// The messages since the first [`listen`] with `part` among their fields.
pub(crate) fn lines_with(part: &str) -> Vec<PluginLogLine> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let with_part = lines.iter().filter(|words| words.fields.contains(part));
    with_part.cloned().collect()
}

struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET && metadata.is_event()
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = PluginLogLine {
            level: Some(*event.metadata().level()),
            ..PluginLogLine::default()
        };
        event.record(&mut words);
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(words);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

impl Visit for PluginLogLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let kept = match field.name() {
            "driver" => &mut self.driver,
            "module" => &mut self.module,
            "message" => &mut self.message,
            "fields" => &mut self.fields,
            _ => return,
        };
        *kept = format!("{value:?}");
    }
}
