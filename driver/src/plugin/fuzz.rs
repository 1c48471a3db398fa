//! A fuzz target for messages from the other side of the plugin protocol. A message is refused, or it decodes to the
//! same value after encoding.

use prost::Message;
use tonic::{Code, Status};

use crate::error::DriverError;
use crate::plugin::proto::hclspec;
use crate::plugin::{convert, handshake, status};
use crate::schema::Schema;
use crate::task::TaskHandle;

/// The checks, one for each kind of message. The corpus refers to a kind by its index: append new kinds.
const MESSAGES: [fn(&[u8]); 13] = [
    |data| {
        let (read, write) = (
            convert::task_config_from_proto,
            convert::task_config_to_proto,
        );
        reads_back(data, read, |config| write(config).ok());
    },
    stored_handle,
    |data| {
        let write = |it: &_| Some(convert::status_to_proto(it));
        reads_back(data, convert::status_from_proto, write);
    },
    |data| {
        let write = |it: &_| Some(convert::wait_to_proto(it));
        reads_back(data, whole(convert::wait_from_proto), write);
    },
    |data| {
        let write = |it: &_| Some(convert::stats_to_proto(it));
        reads_back(data, convert::stats_from_proto, write);
    },
    |data| {
        let write = |it: &_| Some(convert::capabilities_to_proto(it));
        reads_back(data, convert::capabilities_from_proto, write);
    },
    |data| {
        let write = |it: &_| Some(convert::fingerprint_to_proto(it));
        reads_back(data, whole(convert::fingerprint_from_proto), write);
    },
    |data| {
        let write = |it: &_| Some(convert::event_to_proto(it));
        reads_back(data, whole(convert::event_from_proto), write);
    },
    |data| {
        let write = |it: &_| Some(convert::network_to_proto(it));
        reads_back(data, convert::network_from_proto, write);
    },
    schema,
    task_configuration,
    error_details,
    handshake_line,
];

/// Reads a byte that selects the kind of message, and then the message.
///
/// # Panics
///
/// If a decoded message differs after encoding and decoding.
pub fn plugin_messages(data: &[u8]) {
    if let Some((kind, message)) = data.split_first() {
        MESSAGES[usize::from(*kind) % MESSAGES.len()](message);
    }
}

fn whole<M, T>(read: fn(M) -> T) -> impl Fn(M) -> Result<T, DriverError> {
    move |message| Ok(read(message))
}

/// `write` returns `None` for a value that the protocol cannot express.
fn reads_back<M: Message + Default, T>(
    data: &[u8],
    read: impl Fn(M) -> Result<T, DriverError>,
    write: impl Fn(&T) -> Option<M>,
) {
    let Ok(message) = M::decode(data) else { return };
    let Ok(value) = read(message) else { return };
    let Some(written) = write(&value).map(|message| message.encode_to_vec()) else {
        return;
    };
    let message = M::decode(written.as_slice()).expect("a message that was written can be decoded");
    let again = read(message).expect("a message that was written can be read");
    let again = write(&again).expect("it can be written twice");
    assert_eq!(again.encode_to_vec(), written, "a message reads back");
}

/// Checks a handle; handles are also stored on disks.
fn stored_handle(data: &[u8]) {
    let Ok(handle) = TaskHandle::decode(data) else {
        return;
    };
    let written = handle.encode().expect("the paths of a message are UTF-8");
    let again = TaskHandle::decode(&written).expect("a handle that was stored can be read");
    assert_eq!(again.encode().as_ref(), Ok(&written), "a handle reads back");
}

/// Two bytes give the length of a schema; a configuration in msgpack follows it.
fn schema(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk() else {
        return;
    };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (schema, config) = rest.split_at(length);
    reads_back(schema, convert::spec_from_proto, |spec| {
        spec.as_ref().map(convert::spec_to_proto)
    });
    let Ok(message) = hclspec::Spec::decode(schema) else {
        return;
    };
    if let Ok(Some(spec)) = convert::spec_from_proto(message)
        && let Ok(schema) = Schema::new(&spec)
        && let Ok(config) = convert::config_from_msgpack(config)
    {
        match schema.decode("config", &config) {
            Ok(value) => task_configuration(
                &convert::config_to_msgpack(&value).expect("a value can be encoded"),
            ),
            Err(faults) => assert!(!faults.is_empty(), "a refusal has a reason"),
        }
    }
}

fn task_configuration(data: &[u8]) {
    let Ok(config) = convert::config_from_msgpack(data) else {
        return;
    };
    let written = convert::config_to_msgpack(&config).expect("a configuration can be written");
    let again = convert::config_from_msgpack(&written).expect("it can be read");
    let again = convert::config_to_msgpack(&again).expect("it can be written twice");
    assert_eq!(again, written, "a configuration reads back");
}

fn error_details(data: &[u8]) {
    let (details, message) = data.split_at(data.len() / 2);
    let message = String::from_utf8_lossy(message);
    for code in [Code::Unknown, Code::NotFound, Code::FailedPrecondition] {
        let status = Status::with_details(code, &*message, details.to_vec().into());
        let error = status::to_task_error("call", "task", "signal", &status);
        // The status that the error converts to must convert to the same error.
        let again = status::from_task_error(&error);
        let again = status::to_task_error("call", "task", "signal", &again);
        assert_eq!(again, error, "an error reads back");
    }
}

fn handshake_line(data: &[u8]) {
    let Ok(line) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(socket) = handshake::parse(line) {
        assert_eq!(
            handshake::parse(&handshake::line(&socket)),
            Ok(socket),
            "a line reads back"
        );
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture::corpus::replay;

    #[test]
    fn messages_of_the_corpus_read_back() {
        replay("plugin_messages", super::plugin_messages);
    }
}
